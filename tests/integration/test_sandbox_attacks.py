"""Each attack on the sandbox, on each isolation level, as root and as an ordinary user."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.domain.audit import AuditEntry, verify
from swe_ai_fleet.domain.tool import Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.sandbox import Attack, IsolationLevel, LocalWorkspace, Sandbox, SandboxPolicy, examine_sandbox
from swe_ai_fleet.tools import Pipeline, ShellTool, ToolLimits
from swe_ai_fleet.tools.policy import Policy
from swe_ai_fleet.tools.secrets import MASK, Secrets
from tests.confinement import CONFINED, NOBODY, braced, drive, living, require_ordinary_user

MIB = 1024**2


@pytest.fixture(
    params=[
        # A laptop, and a container in a cluster.
        pytest.param(("bubblewrap", False), marks=CONFINED[0].marks, id="bubblewrap-as we are"),
        pytest.param(("landlock", True), marks=CONFINED[1].marks, id="landlock-as an ordinary user"),
    ]
)
def confinement(request: pytest.FixtureRequest) -> tuple[str, bool]:
    if request.param[1]:
        require_ordinary_user()
    return request.param


@pytest.fixture
def level(confinement: tuple[str, bool]) -> str:
    return confinement[0]


@pytest.fixture
def ordinary(confinement: tuple[str, bool]) -> bool:
    return confinement[1]


def sh(script: str, **options: Any) -> tuple[list[str], dict[str, Any]]:
    # `{{` and `}}` in a script stand for braces.
    return ["sh", "-c", script], {"timeout_seconds": 30, **options}


def py(script: str, *arguments: str, **options: Any) -> tuple[list[str], dict[str, Any]]:
    return ["python3", "-c", script, *arguments], {"timeout_seconds": 30, **options}


REFUSED = (
    "cat {outside}/id_ed25519", "ls {outside}", "ls ~root/.ssh/", "cat {other}/file", "ls {other}",
    "echo x > {outside}/new", "echo x >> {outside}/id_ed25519", "truncate -s 0 {outside}/id_ed25519",
    "rm -f {outside}/id_ed25519 && ! test -e {outside} && false", "mv {outside}/id_ed25519 .",
    "ln {outside}/id_ed25519 link", "ln -s {outside}/id_ed25519 sym && cat sym",
    "ln -sf {outside} dir && echo x > dir/new", "cp file {other}/file2", "cat /etc/shadow",
    "mount -t tmpfs none .", "mount -o remount,rw /", "mount -o remount,rw /usr", "mount -o bind,remount,rw /proc",
    "mount --bind /etc .", "mount -t tmpfs none /workspace", "umount /proc", "mknod d b 8 0", "mknod d c 1 1",
    "unshare -U true", "unshare -Urm true", "nsenter -t 1 -m true", "chroot / true", "hostname other",
    "ip link add d type dummy", "echo x > /x", "echo x > /usr/x", "echo x > /etc/passwd", "echo x > /dev/x",
    "echo x > /run/fleet/sh", "chmod 755 /run/fleet/sh", "chmod 777 /etc", "chmod 4755 /bin/sh",
    "cp /bin/sh /usr/local/bin/fleet-attack", "mkdir /root/x", "touch /etc/passwd", "echo 1 > /proc/sys/kernel/sysrq",
    "echo 1 > /proc/sys/vm/drop_caches", "setpriv --reuid 0 true", "su -c true </dev/null",
    "ls /root/.cache /root/.config", "ls /var/lib", "ls /run/user", "ls /etc/ssl/private",
)  # fmt: skip


def test_what_lies_outside_is_neither_read_nor_changed(level: str, ordinary: bool) -> None:
    """Files of the host and of other workspaces, and the processes of the fleet's own user."""
    user = {"user": NOBODY, "group": NOBODY} if ordinary else {}
    victim = subprocess.Popen(["sleep", "600"], env={"SECRET": "of-the-fleet"}, **user)
    pid = victim.pid
    refused = (
        *REFUSED, f"kill -9 {pid}", f"cat /proc/{pid}/environ", f"ls -l /proc/{pid}/fd", f"cat /proc/{pid}/maps",
        f"echo x > /proc/{pid}/mem", f"ls /proc/{pid}/root/", "kill -9 -1; exit 7",
    )  # fmt: skip
    try:
        found = drive(
            level,
            ordinary,
            *(sh(script) for script in refused),
            py(f"import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) and 1)"),
            sh("cat /proc/[0-9]*/environ /proc/self/environ 2>/dev/null | tr '\\0' '\\n'"),
            sh("mkdir -p a/b; echo x > a/b/c; ln -sf /etc/passwd l; git init -q r && echo still here"),
        )
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()
    *tried, environments, after = found["results"]
    assert [script for script, result in zip((*refused, "ptrace"), tried, strict=True) if not result["exit"]] == []
    assert "HOME=" in environments["out"] and "of-the-fleet" not in environments["out"]
    assert after["out"] == "still here\n", after["err"]
    assert (found["key"], found["mode"], found["outside"]) == ("a private key", 0o600, ["id_ed25519"])
    assert found["theirs"] == "theirs\n"
    # What a command writes belongs to the fleet's user in the end.
    assert found["owners"] == [NOBODY if ordinary else os.geteuid()]


WILD_BOMB = """
import os, sys, time
if os.fork():
    sys.exit(3)
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
"""


def test_nothing_outlives_its_command(level: str, ordinary: bool) -> None:
    sleeper, name = f"{70_000_000 + secrets.randbelow(10**7)}.5", f"bomb-{secrets.token_hex(6)}"
    daemon = f"""
import os, sys, time
for shed in range(3):
    if not os.fork():
        os.setsid()
        if not os.fork():
            os.execve("/bin/sleep", ["sleep", "{sleeper}"], {{}})
        os._exit(0)
    os.wait()
"""
    daemons, killed, late, left, bomb = drive(
        level,
        ordinary,
        py(braced(daemon)),
        sh(f"env -i setsid sleep {sleeper} & kill -9 $PPID; sleep 60"),
        sh(f"(trap '' TERM HUP; env -i setsid sleep {sleeper}) & sleep {sleeper}", timeout_seconds=0.5),
        sh(f"sleep {sleeper} & sleep {sleeper} & exit 5"),
        py(WILD_BOMB, name),
        policy={"max_processes": 64},
    )["results"]
    assert [result["exit"] for result in (daemons, killed, left, bomb)] == [0, 137, 5, 3]
    assert [late["timed_out"], bomb["timed_out"]] == [True, False]
    assert max(result["ms"] for result in (daemons, killed, left, bomb)) < 10_000
    assert living(sleeper) == living(name) == []


# Nine MiB in each place: without any one of them it would be less than the limit.
EVERYWHERE = """
import os, time
for number in range(27):
    place = (".", os.environ["HOME"], os.environ["TMPDIR"])[number % 3]
    with open(f"{place}/fill-{number}", "wb") as file:
        file.write(bytes(2**20))
time.sleep(10)
print("filled")
"""
NAMELESS = """
import os, time
held = []
for number in range(400):
    descriptor = os.open("fill", os.O_RDWR | os.O_CREAT)
    os.unlink("fill")
    os.write(descriptor, bytes(2**20))
    held.append(descriptor)
    time.sleep(0.01)
print("filled")
"""
TUCKED_AWAY = """
import os, time
for number in range(400):
    if number % 4 == 0:
        os.makedirs(f"{number}/in")
    with open(f"{number // 4 * 4}/in/fill-{number}", "wb") as file:
        file.write(bytes(2**20))
    if number % 4 == 3:
        os.chmod(f"{number // 4 * 4}", 0)
    time.sleep(0.01)
print("filled")
"""


def test_the_disk_cannot_be_filled(level: str, ordinary: bool) -> None:
    """In the workspace, at home and in tmp; by files without a name; in directories that cannot be entered."""
    clear = sh("chmod -R u+rwx . && rm -rf ./* $HOME/fill-* $TMPDIR/fill-*")
    commands = [command for script in (EVERYWHERE, NAMELESS, TUCKED_AWAY) for command in (py(braced(script)), clear)]
    results = drive(level, ordinary, *commands, policy={"max_disk_bytes": 20 * MIB})["results"]
    for filling, clearing in zip(results[::2], results[1::2], strict=True):
        assert (filling["exit"], filling["out"], clearing["exit"]) == (137, "", 0), clearing
        assert "[disk limit: " in filling["err"]
        assert filling["ms"] < 4000


SHARED = """
import sys
from multiprocessing import Lock, Queue, resource_tracker, shared_memory
with Lock():
    queue = Queue()
    queue.put("shared")
    print(queue.get(timeout=30))
# Without the process that would remove it at the end.
resource_tracker.register = lambda *_: None
for name in sys.argv[1:]:
    shared_memory.SharedMemory(name, create=True, size=4096).close()
"""


def test_shared_memory_works_and_goes_with_the_workspace(level: str, ordinary: bool) -> None:
    name = f"fleet-{secrets.token_hex(8)}"
    mine, before = Path("/dev/shm", name), Path("/dev/shm", f"{name}-before")
    before.write_text("of another process of the same user")
    if ordinary:
        os.chown(before, NOBODY, NOBODY)
    try:
        result, listed = drive(level, ordinary, py(SHARED, name), sh("ls /dev/shm"))["results"]
        assert (result["exit"], result["out"]) == (0, "shared\n"), result["err"]
        # Names are random; whoever may not list them finds nobody else's.
        assert before.name not in listed["out"]
        assert not mine.exists()
        assert before.exists()
    finally:
        before.unlink()


# --- what a command of an agent's must not do, tried through the shell tool, and what the audit says about it ---


SECRET = f"secret-{uuid.uuid4().hex}"
LIMITS = ToolLimits(command_timeout_seconds=30.0, observation_chars=2_000)


@pytest.fixture(params=CONFINED)
def each_level(request: pytest.FixtureRequest) -> IsolationLevel:
    return request.param


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "clone"
    root.mkdir()
    return root


def sandbox(each_level: IsolationLevel, **limits: int) -> Sandbox:
    return Sandbox(SandboxPolicy(level=each_level, grace_seconds=0.3, **limits))


def shell(workspace: LocalWorkspace) -> ShellTool:
    return ShellTool(workspace, Pipeline(limits=LIMITS))


async def tried(tool: ShellTool, command: str, **limits: float) -> tuple[ToolResult, AuditEntry]:
    """What became of a command, and the audit's entry of its end: there is one of its start before it."""
    result = await tool.call("run_command", {"command": command, **limits})
    started, ended = tool.pipeline.trail.entries[-2:]
    assert (started.outcome, started.call_id) == (Outcome.STARTED, ended.call_id)
    assert started.arguments["command"] == command
    assert (ended.decision, ended.outcome, ended.exit_code) == (
        PolicyDecision.ALLOWED,
        result.outcome,
        result.exit_code,
    )
    assert verify(tool.pipeline.trail.entries, head=tool.pipeline.trail.head) is None
    return result, ended


async def test_a_network_that_was_not_granted(each_level: IsolationLevel, root: Path) -> None:
    async with sandbox(each_level).workspace(root) as workspace:
        tool = shell(workspace)
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            port = server.getsockname()[1]
            for address in (f"127.0.0.1/{port}", f"localhost/{port}", "169.254.169.254/80", "192.0.2.1/80"):
                result, entry = await tried(tool, f"exec 3<>/dev/tcp/{address} && echo reached >&3", timeout_seconds=10)
                assert entry.outcome is Outcome.ERROR, result.observation()
            with pytest.raises(BlockingIOError):
                server.accept()


async def test_a_flood_with_a_secret_at_its_seams(each_level: IsolationLevel, root: Path) -> None:
    (root / "word").write_text(f"{SECRET} ")
    async with sandbox(each_level).workspace(root) as workspace:
        tool = ShellTool(workspace, Pipeline(limits=LIMITS, mask=Secrets([SECRET])))
        # Words of one length without a line end: wherever head and tail are cut, a word is cut with them.
        flood = "cat word; yes \"$(cat word)\" | tr -d '\\n' | head -c 9000000; echo; echo end"
        result, entry = await tried(tool, flood)
    assert result.truncated
    assert result.content.endswith("end")
    assert MASK in result.content
    assert len(result.content) < 2_300
    # A program whose reader has gone ends by a signal: its complaint could stand in the middle of a word.
    assert "Broken pipe" not in result.content
    assert entry.bytes_out < 3 * MIB
    pieces = {SECRET[i : i + 8] for i in range(len("secret-"), len(SECRET) - 8)}
    assert not any(piece in result.content for piece in pieces)


# By what is without end: the limit, a program, and words that it must leave in the answer.
WITHOUT_END = {
    "processes": ({"max_processes": 40}, "if not os.fork():\n        time.sleep(60)\n        os._exit(0)", "Blocking"),
    "one file": ({"max_file_bytes": MIB}, "open('fill-1', 'ab').write(bytes(MIB))", ""),
    "memory": ({"max_memory_bytes": 128 * MIB}, "held.append(bytearray(4 * MIB))", ""),
}


@pytest.mark.parametrize("what", WITHOUT_END)
async def test_what_is_without_end(each_level: IsolationLevel, root: Path, what: str) -> None:
    if what == "memory" and Attack.MEMORY in (await examine_sandbox(each_level.value)).leaves_open:
        pytest.skip("no memory control group is writable")
    limits, line, said = WITHOUT_END[what]
    program = f"import os, time\nMIB, held = 1 << 20, []\nfor at in range(200):\n    {line}\n    time.sleep(0.01)\n"
    (root / "attack.py").write_text(f"{program}print('all of it')\n")
    async with sandbox(each_level, **limits).workspace(root) as workspace:
        tool = shell(workspace)
        result, entry = await tried(tool, "exec python3 attack.py")
        assert entry.outcome is Outcome.ERROR, result.observation()
        assert said in result.content and "all of it" not in result.content
        # Once room is made it goes on.
        assert (await tried(tool, "rm -f fill-*"))[1].outcome is Outcome.SUCCESS
        assert (await tried(tool, "head -c 100000 /dev/zero >more"))[1].outcome is Outcome.SUCCESS


@pytest.mark.parametrize("policy", [Policy(read_only=True), Policy(denied=frozenset({"shell"}))])
async def test_a_shell_that_was_not_granted(root: Path, policy: Policy) -> None:
    async with sandbox(IsolationLevel.NONE).workspace(root) as workspace:
        tool = ShellTool(workspace, Pipeline(policy=policy))
        result = await tool.run_command("touch made")
    assert result.outcome is Outcome.REFUSED and not (root / "made").exists()
    (entry,) = tool.pipeline.trail.entries
    assert (entry.decision, entry.outcome, entry.reason) == (PolicyDecision.REFUSED, Outcome.REFUSED, result.error)
