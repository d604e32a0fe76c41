"""What a command in a sandbox cannot see, change or use up."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.sandbox import (
    Attack,
    LocalWorkspace,
    Rung,
    Sandbox,
    SandboxPolicy,
    examine_sandbox,
)
from swe_ai_fleet.sandbox.attacks import probe_workspace
from swe_ai_fleet.sandbox.control_groups import ControlGroups
from swe_ai_fleet.sandbox.landlock import Landlock
from swe_ai_fleet.sandbox.workspace import Host
from tests.confinement import living, needs_bwrap, python, shell, token

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root is at risk")


@pytest.fixture
async def confined(tmp_path: Path) -> AsyncIterator[LocalWorkspace]:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    (tmp_path / "ws").mkdir()
    sandbox = Sandbox(SandboxPolicy(max_processes=64, max_memory_bytes=256 * 1024**2, grace_seconds=0.3))
    async with sandbox.workspace(tmp_path / "ws") as opened:
        yield opened


async def test_files_outside_cannot_be_seen(confined: LocalWorkspace, tmp_path: Path) -> None:
    secret = tmp_path / "other" / "secret"
    secret.parent.mkdir()
    secret.write_text("secret")
    home = Path.home()
    for path in (str(secret), str(home / ".ssh"), str(home / ".gitconfig"), "/etc/shadow", "/var", "/sys", "/boot"):
        assert not (await confined.run(Command(argv=("ls", path)))).ok, path
    assert (await confined.run(Command(argv=("ls", "/etc/ssl/private")))).exit_code != 0


async def test_other_processes_cannot_be_seen(confined: LocalWorkspace) -> None:
    assert int((await confined.run(shell("ls -d /proc/[0-9]* | wc -l"))).stdout.text()) <= 5
    result = await confined.run(shell("cat /proc/*/environ | tr '\\0' '\\n'"))
    assert "PYTEST_CURRENT_TEST" not in result.stdout.text()
    assert os.environ["PATH"] not in result.stdout.text()
    script = "import os, sys; os.kill(int(sys.argv[1]), 0)"
    assert "ProcessLookupError" in (await confined.run(python(script, str(os.getpid())))).stderr.text()


async def test_the_runner_cannot_be_looked_into(confined: LocalWorkspace) -> None:
    result = await confined.run(
        shell("for f in fd/3 fd/5 environ mem; do (: <> /proc/$PPID/$f) && echo $f; done; echo end")
    )
    assert result.stdout.text() == "end\n"
    pid_one = await confined.run(shell("for f in /proc/1/fd/*; do readlink $f; done; ls -l /proc/1/exe /proc/1/cwd"))
    assert "->" not in pid_one.stdout.text()
    assert "pipe:" not in pid_one.stdout.text(), "what the first process has open is not to be seen either"


async def test_a_command_that_kills_everything_it_sees_ends_only_itself(confined: LocalWorkspace) -> None:
    for script in ("kill -9 -1", "kill -9 $PPID; sleep 60", "kill -9 0"):
        result = await confined.run(shell(script, timeout_seconds=20))
        assert (result.exit_code, result.timed_out) == (137, False), script
        assert (await confined.run(Command(argv=("true",)))).ok
    assert (await confined.run(shell("kill -TERM 0; echo never"))).exit_code == 143
    handled = await confined.run(shell("trap 'echo caught' TERM; kill -TERM 0; sleep 0.3; echo after; exit 6"))
    assert (handled.stdout.text(), handled.exit_code) == ("caught\nafter\n", 6)


async def test_loopback_of_the_host_cannot_be_reached(confined: LocalWorkspace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        script = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 3)"
        result = await confined.run(python(script, str(listener.getsockname()[1])))
    assert "ConnectionRefusedError" in result.stderr.text()
    assert "lo" in (await confined.run(shell("cat /proc/net/dev | tail -n +3"))).stdout.text()
    outside = await confined.run(python("import socket; socket.create_connection(('8.8.8.8', 53), 3)"))
    assert "unreachable" in outside.stderr.text()


async def test_own_loopback_works(confined: LocalWorkspace) -> None:
    script = (
        "import socket; s = socket.create_server(('127.0.0.1', 0));"
        "socket.create_connection(s.getsockname()); print(s.accept()[1][0])"
    )
    assert (await confined.run(python(script))).stdout.text() == "127.0.0.1\n"


@pytest.mark.parametrize(
    "script",
    [
        "mount -o remount,rw /",
        "mount -o remount,rw /usr",
        "mount -o bind,remount,rw /proc",
        "mount -t tmpfs none /workspace",
        "umount /proc",
        "mknod d b 8 0",
        "mknod d c 1 1",
        "unshare -U true",
        "unshare -Urm true",
        "chroot / true",
        "hostname other",
        "ip link add d type dummy",
        "date -s 2001-01-01",
        "echo x > /x",
        "echo x > /usr/x",
        "echo x > /etc/passwd",
        "echo x > /dev/x",
        "echo x > /run/fleet/sh",
        "chmod 755 /run/fleet/sh",
        "mkdir /root/x",
        "cp /bin/sh /usr/local/bin/python3",
    ],
)
async def test_the_outside_cannot_be_changed(confined: LocalWorkspace, script: str) -> None:
    result = await confined.run(shell(script))
    assert not result.ok, result.stdout.text()


async def test_kernel_settings_cannot_be_written(confined: LocalWorkspace) -> None:
    # Writing back what is there would change nothing, should it succeed.
    setting = "/proc/sys/vm/stat_interval"
    result = await confined.run(shell(f"value=$(cat {setting}) && echo $value > {setting}"))
    assert (result.exit_code, "Read-only" in result.stderr.text()) == (2, True)
    opened = await confined.run(
        python(
            """
import os
for folder, names, files in os.walk("/proc"):
    names[:] = [name for name in names if not name.isdigit() and name not in ("self", "thread-self")]
    for file in files:
        try:
            os.close(os.open(os.path.join(folder, file), os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            continue
        print(os.path.join(folder, file))
"""
        )
    )
    assert (opened.exit_code, opened.stdout.text()) == (0, "")


@needs_root
async def test_core_dumps_start_no_program_of_the_commands_choice(confined: LocalWorkspace) -> None:
    pattern = Path("/proc/sys/kernel/core_pattern")
    before = pattern.read_text()
    script = "import os; os.close(os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY))"
    assert "Read-only" in (await confined.run(python(script))).stderr.text()
    assert pattern.read_text() == before
    assert (await confined.run(shell("ulimit -c"))).stdout.text() == "0\n"


async def test_capabilities_are_gone_and_cannot_be_had(confined: LocalWorkspace) -> None:
    status = (await confined.run(shell("grep -E 'Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs' /proc/self/status"))).stdout.text()
    assert status.count("0000000000000000") == 4
    assert "NoNewPrivs:\t1" in status


async def test_ptrace_of_the_runner_and_of_init_is_refused(confined: LocalWorkspace) -> None:
    script = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.ptrace(16, os.getppid(), 0, 0), ctypes.get_errno())
"""
    assert (await confined.run(python(script))).stdout.text() == "-1 1\n"


async def test_a_fork_bomb_is_bounded_and_killed(confined: LocalWorkspace) -> None:
    name = f"bomb{token()}"
    bomb = "import os, sys, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)"
    task = asyncio.create_task(confined.run(python(bomb, name, timeout_seconds=1.5)))
    most = 0
    while not task.done():
        most = max(most, len(living(name)))
        await asyncio.sleep(0.05)
    assert (await task).timed_out
    assert 1 < most <= 64
    assert living(name) == []
    assert (await confined.run(Command(argv=("true",)))).ok


async def test_a_fork_bomb_left_behind_is_killed_too(confined: LocalWorkspace) -> None:
    name = f"bomb{token()}"
    bomb = "import os, sys\nif os.fork(): sys.exit(3)\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    result = await confined.run(python(bomb, name, timeout_seconds=30))
    assert (result.exit_code, result.timed_out) == (3, False)
    assert living(name) == []


@needs_root
async def test_memory_is_bounded(confined: LocalWorkspace) -> None:
    if Attack.MEMORY not in (await examine_sandbox("auto")).closes:
        pytest.skip("no memory control group is writable")
    result = await confined.run(python("x = bytearray(1024**3); print(len(x))", timeout_seconds=30))
    assert (result.ok, result.stdout.text()) == (False, "")
    assert (await confined.run(Command(argv=("true",)))).ok


SPIN = """
import os, time
children = [os.fork() for _ in range(2)]
end = time.monotonic() + 1.5
while time.monotonic() < end:
    pass
if all(children):
    for child in children:
        os.waitpid(child, 0)
    used = os.times()
    print(used.user + used.system + used.children_user + used.children_system)
"""


@needs_bwrap
async def test_the_cpus_of_a_command_are_bounded(tmp_path: Path) -> None:
    if not ControlGroups.discover().cpu:
        pytest.skip("no cpu control group is writable")
    async with Sandbox(SandboxPolicy(max_cpus=0.2)).workspace(tmp_path) as workspace:
        result = await workspace.run(python(SPIN, timeout_seconds=60))
    # Four processes that would take all there is for a second and a half; a fifth of one CPU is granted.
    assert 0 < float(result.stdout.text()) < 0.75, result


async def test_file_size_is_bounded(tmp_path: Path) -> None:
    sandbox = Sandbox(SandboxPolicy(rung=Rung.NONE, max_file_bytes=1024**2))
    async with sandbox.workspace(tmp_path) as workspace:
        assert not (await workspace.run(shell("head -c 3000000 /dev/zero > big"))).ok
    assert (tmp_path / "big").stat().st_size == 1024**2


AS_ORDINARY_USER = """
import asyncio, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy, choose_rung

BOMB = '''
import os, time
n = 0
while n < 1000:
    try: pid = os.fork()
    except OSError: break
    if not pid: time.sleep(60)
    n += 1
print(n)
'''

async def main():
    holder = tempfile.TemporaryDirectory()
    root = Path(holder.name)
    async with Sandbox(SandboxPolicy(rung=await choose_rung("auto"), max_processes=64)).workspace(root) as workspace:
        async def run(*argv, **options):
            return await workspace.run(Command(argv=argv, **options))
        assert (await run("sh", "-c", "echo x > x; id -u")).stdout.text() == "1000\\n"
        assert (root / "x").read_text() == "x\\n"
        assert not (await run("mount", "-o", "remount,rw", "/")).ok
        assert not (await run("sh", "-c", "ls -l /proc/$PPID/fd/3")).ok
        assert (await run("sh", "-c", "setsid sleep 86400.5 & exit 4")).exit_code == 4
        assert (await run("sleep", "60", timeout_seconds=0.2)).timed_out
        assert 20 < int((await run("python3", "-c", BOMB)).stdout.text()) < 64
        await run("sh", "-c", "mkdir $HOME/d; touch $HOME/d/f; chmod 0 $HOME/d")
    print("ok")

asyncio.run(main())
"""


@needs_bwrap
@needs_root
def test_as_an_ordinary_user() -> None:
    source = Path(__file__).parents[2] / "src"

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            user=65534,
            group=65534,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "TMPDIR": "/tmp"},
        )

    # The interpreter of this environment may lie where an ordinary user cannot go.
    interpreter = "/usr/bin/python3"
    check = "import sys, os; os.listdir(sys.argv[1]); sys.exit(sys.version_info < (3, 11))"
    if not Path(interpreter).exists() or run(interpreter, "-c", check, str(source)).returncode:
        pytest.skip("an ordinary user finds no recent interpreter or no source here")
    finished = run(interpreter, "-c", AS_ORDINARY_USER, str(source))
    assert (finished.stdout, finished.returncode) == ("ok\n", 0), finished.stderr


@pytest.mark.skipif(Landlock.find() is None, reason="the kernel offers no Landlock")
@pytest.mark.parametrize("version", [1, 3, 5])
async def test_older_kernels_have_a_landlock_too(tmp_path: Path, version: int) -> None:
    secret, root, sleeper = tmp_path / "secret", tmp_path / "ws", token()
    secret.write_text("secret")
    root.mkdir()
    policy = SandboxPolicy(rung=Rung.LANDLOCK, grace_seconds=0.3)
    host = Host(policy=policy, slots=None, groups=ControlGroups.discover(), landlock=Landlock(version=version))
    async with probe_workspace(host, root) as workspace:
        assert not (await workspace.run(shell(f"cat {secret} || ls {tmp_path}"))).ok
        left = await workspace.run(shell(f"env -i setsid sleep {sleeper} & (setsid sleep {sleeper} &) ; exit 4"))
        assert (left.exit_code, living(sleeper)) == (4, [])
        late = await workspace.run(shell(f"setsid sleep {sleeper} & sleep {sleeper}", timeout_seconds=0.3))
        assert (late.timed_out, living(sleeper)) == (True, [])
        gone = await workspace.run(shell(f"env -i setsid sleep {sleeper} & kill -9 $PPID; sleep {sleeper}"))
        assert (gone.exit_code, living(sleeper)) == (137, [])
        assert (await workspace.run(Command(argv=("true",)))).ok
