"""System calls, files and variables that reach beyond a sandbox, made for real on both levels and without one."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import NetworkGrant, TaskMcpServer
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import Constraints, EnvironmentSpec, RepoRef, Task, TaskKind
from swe_ai_fleet.sandbox import IsolationLevel, Sandbox, SandboxPolicy
from swe_ai_fleet.sandbox.interactive import InteractiveCommand, InteractiveProcess
from tests.attacks import kernel_calls
from tests.confinement import (
    CONFINED,
    NOBODY,
    SOURCE,
    SYSTEM_PYTHON,
    as_nobody,
    needs_bwrap,
    python,
    require_ordinary_user,
    shell,
)

_SCRIPT = Path(kernel_calls.__file__).read_text()
_REFUSED = {errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT}
_FIRST = [name for name in kernel_calls.CALLS if name.endswith(" 1")]
_CALLS = [name for name in kernel_calls.CALLS if name not in _FIRST]


_KEY_CALLS = (250, 248, 249) if os.uname().machine == "x86_64" else (219, 217, 218)


_FLEET = """
import asyncio, ctypes, subprocess, sys
from pathlib import Path
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.sandbox import IsolationLevel, Sandbox, SandboxPolicy

keyctl, add_key, request_key, root = *map(int, sys.argv[1:4]), sys.argv[4]
kernel = ctypes.CDLL(None).syscall
if kernel(keyctl, 1, None) < 0 or kernel(add_key, b"user", b"fleet-login", b"secret", ctypes.c_size_t(6), -3) < 0:
    sys.exit("no keyrings")
ask = f"import ctypes; print(ctypes.CDLL(None).syscall({request_key}, b'user', b'fleet-login', None, 0) > 0)"
listing = ("cat", "/proc/keys")
print(subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout.strip())
print("fleet-login" in subprocess.run(listing, capture_output=True, text=True).stdout)

async def main():
    for level in sys.argv[5:]:
        async with Sandbox(SandboxPolicy(level=IsolationLevel(level))).workspace(Path(root)) as workspace:
            asked = await workspace.run(Command(argv=("python3", "-c", ask)))
            listed = await workspace.run(Command(argv=listing))
        print(level, asked.stdout.text().strip(), "fleet-login" in listed.stdout.text())

asyncio.run(main())
"""


async def _made(level: IsolationLevel, root: Path, *calls: str) -> dict[str, int]:
    """What calls of a command come to; those of `kernel_calls.SET_ID` where none is named."""
    async with Sandbox(SandboxPolicy(level=level)).workspace(root) as workspace:
        result = await workspace.run(python(_SCRIPT, *calls))
    assert result.ok, result.stderr.text()
    return json.loads(result.stdout.text())


@pytest.mark.parametrize("level", CONFINED)
async def test_calls_that_no_build_needs_are_refused(level: IsolationLevel, tmp_path: Path) -> None:
    outside = await _made(IsolationLevel.NONE, tmp_path, *_CALLS)
    # The control: as root on a kernel that has them they are carried out. What this kernel lacks proves nothing.
    possible = {name for name, answer in outside.items() if answer == 0}
    assert possible
    inside = await _made(level, tmp_path, *_CALLS)
    assert {name: inside[name] for name in possible if inside[name] not in _REFUSED} == {}
    assert 0 not in inside.values()
    # The fleet's own helper is under the same filter, and so is a server that stays.
    async with Sandbox(SandboxPolicy(level=level)).workspace(tmp_path) as workspace:
        confining = await workspace.confining(readable=(Path(sys.base_prefix),))
    calls = ("keyctl", "io_uring", "vsock", "userfaultfd")
    argv = (*confining, f"{sys.base_prefix}/bin/python3", "-I", "-c", _SCRIPT, *calls)
    helper = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, cwd=tmp_path, env={"PATH": os.environ["PATH"]}
    )
    answers = json.loads((await helper.communicate())[0])
    assert set(answers) == set(calls) and set(answers.values()) <= _REFUSED
    if level is IsolationLevel.BUBBLEWRAP:
        calls = [name for name in (*_CALLS, *_FIRST) if name != "request_key"]
        answers = json.loads(await _stayed(tmp_path, InteractiveCommand(argv=("python3", "-c", _SCRIPT, *calls))))
        assert set(answers) == set(calls) and 0 not in answers.values()


async def _stayed(root: Path, command: InteractiveCommand) -> bytes:
    """What a program says that is confined with bubblewrap and stays."""
    process = await InteractiveProcess.start(root, command, policy=SandboxPolicy(level=IsolationLevel.BUBBLEWRAP))
    try:
        return await process.stdout.read()
    finally:
        await process.kill()


@pytest.mark.parametrize("level", CONFINED)
async def test_no_file_of_a_workspace_runs_as_its_owner(level: IsolationLevel, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside").mkdir()
    outside = await _made(IsolationLevel.NONE, tmp_path / "outside")
    assert outside["fchmodat-4755"] == outside["openat-4755"] == 0
    assert _set_id(tmp_path / "outside")
    inside = await _made(level, tmp_path / "inside")
    assert set(inside.values()) <= {errno.EPERM, errno.ENOSYS}
    assert not _set_id(tmp_path / "inside")
    # Modes that say nothing of the kind are set as ever.
    async with Sandbox(SandboxPolicy(level=level)).workspace(tmp_path / "inside") as workspace:
        done = await workspace.run(shell("mkdir -m 1777 d && touch f && chmod 755 f && install -m 700 f d/g"))
    assert done.ok, done.stderr.text()
    assert stat.S_IMODE((tmp_path / "inside/d").stat().st_mode) == 0o1777


def _set_id(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if path.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID)]


@needs_bwrap
async def test_the_first_process_of_a_sandbox_cannot_be_traced(tmp_path: Path) -> None:
    # The control: bubblewrap's own first process can.
    control = subprocess.run(
        [
            *("bwrap", "--unshare-user", "--uid", "1000", "--gid", "1000", "--unshare-pid", "--cap-drop", "ALL"),
            *("--bind", "/", "/", "--proc", "/proc", "--", SYSTEM_PYTHON, "-c", _SCRIPT, *_FIRST),
        ],
        check=True,
        capture_output=True,
    )
    assert set(json.loads(control.stdout).values()) == {0}
    inside = await _made(IsolationLevel.BUBBLEWRAP, tmp_path, *_FIRST)
    assert set(inside.values()) <= {errno.EPERM, errno.EACCES}


_OWN_ID = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.sandbox import IsolationLevel, Sandbox, SandboxPolicy

async def main():
    async with Sandbox(SandboxPolicy(level=IsolationLevel(sys.argv[3]))).workspace(Path(sys.argv[2])) as workspace:
        told = await workspace.run(Command(argv=("sh", "-c", "./set-uid -u && id -u")))
        print(told.stdout.text(), told.stderr.text())

asyncio.run(main())
"""


@pytest.mark.parametrize("level", CONFINED)
def test_a_set_uid_file_of_the_host_runs_as_whoever_starts_it(level: IsolationLevel) -> None:
    """A file of root's that came into the workspace of an ordinary user's fleet from outside."""
    require_ordinary_user()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        shutil.copy(shutil.which("id") or "", place / "set-uid")
        for path, mode in ((place, 0o755), (place / "set-uid", 0o4755)):
            os.chown(path, NOBODY if path == place else 0, -1)
            path.chmod(mode)
        # The control.
        assert as_nobody([str(place / "set-uid"), "-u"]).stdout.split() == ["0"]
        tried = as_nobody([SYSTEM_PYTHON, "-B", "-c", _OWN_ID, str(SOURCE), directory, level.value])
        set_uid, own = tried.stdout.split()
        assert set_uid == own


@needs_bwrap
async def test_every_mount_of_a_sandbox_is_without_set_uid_and_devices(tmp_path: Path) -> None:
    for name in ("shown", "writable", "workspace"):
        (tmp_path / name).mkdir()
    shown = Environment(mounts=(Mount(source=str(tmp_path / "shown"), target="/environment"),))
    writable = (Mount(source=str(tmp_path / "writable"), target="/writable"),)
    sandbox = Sandbox(SandboxPolicy(level=IsolationLevel.BUBBLEWRAP))
    network = NetworkGrant(hosts=("example.org",))
    workspace = sandbox.workspace(tmp_path / "workspace", environment=shown, writable=writable, network=network)
    async with workspace:
        told = await workspace.run(shell("cat /proc/self/mountinfo"))
    mounts = {line.split()[4]: set(line.split()[5].split(",")) for line in told.stdout.text().splitlines()}
    assert {"/workspace", "/environment", "/writable", "/tmp", "/usr", "/proc", "/dev/shm"} <= mounts.keys()
    assert [place for place, options in mounts.items() if "nosuid" not in options] == []
    devices = [place for place, options in mounts.items() if "nodev" not in options]
    # The few that are there on purpose.
    assert [place for place in devices if not place.startswith("/dev/")] == []


# --- variables of callers, aimed at what starts the sandbox ---


def orders(trail: Path) -> dict[str, str]:
    """Variables that have the loader of any process leave a file of the host, before the program itself begins."""
    return {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": f"{trail}/loader"}


@pytest.fixture
def trail(tmp_path: Path) -> Path:
    """A directory in which such processes leave files."""
    for name in ("workspace", "trail", "control"):
        (tmp_path / name).mkdir()
    subprocess.run(["/bin/sh", "-c", ":"], env=orders(tmp_path / "control"), check=True)
    assert list((tmp_path / "control").iterdir())
    return tmp_path / "trail"


@pytest.mark.parametrize("level", CONFINED)
async def test_no_launcher_runs_with_a_callers_variables(level: IsolationLevel, tmp_path: Path, trail: Path) -> None:
    environment = Environment(variables={**orders(trail), "SAID": "it's $HOME\n`id`"})
    opened = Sandbox(SandboxPolicy(level=level)).workspace(tmp_path / "workspace", environment=environment)
    async with opened as workspace:
        found = await workspace.run(shell('printf %s "$SAID"'))
    # Inside, commands have them as they were given.
    assert found.stdout.text().endswith("it's $HOME\n`id`")
    if level is IsolationLevel.BUBBLEWRAP:
        variables = {**orders(trail), "SAID": "a 'b'"}
        stays = InteractiveCommand(argv=("sh", "-c", 'printf "%s" "$SAID"'), variables=variables)
        assert (await _stayed(tmp_path / "workspace", stays)).endswith(b"a 'b'")
    assert not list(trail.iterdir())


def test_loaders_and_start_up_are_refused_by_name() -> None:
    task = Task(kind=TaskKind.DELIBERATE, task_id="t", tenant="default", description="x", repo=RepoRef(location="/r"))
    for name in (
        "LD_PRELOAD",
        "LD_AUDIT",
        "BASH_ENV",
        "ENV",
        "PYTHONSTARTUP",
        "PYTHONHOME",
        "NODE_OPTIONS",
        "PERL5OPT",
    ):
        server = TaskMcpServer(name="s", command=("x",), variables={name: "y"})
        for field, changed in (
            ("environment", {"environment": EnvironmentSpec(variables={name: "/environment/evil.so"})}),
            ("constraints.mcp_servers[0]", {"constraints": Constraints(mcp_servers=(server,))}),
        ):
            with pytest.raises(InvalidRequest) as refused:
                replace(task, **changed).validated(max_agents=8)
            assert refused.value.field == f"{field}.variables[{name}]"


@pytest.mark.parametrize("level", CONFINED)
def test_the_fleets_session_keyring_stays_outside(level: IsolationLevel, tmp_path: Path) -> None:
    # A fleet of its own, for the keyring that it leaves.
    done = subprocess.run(
        [sys.executable, "-c", _FLEET, *map(str, _KEY_CALLS), str(tmp_path), level, IsolationLevel.NONE],
        capture_output=True,
        text=True,
        check=False,
    )
    if "no keyrings" in done.stderr:
        pytest.skip("the kernel has no keyrings, or refuses them")
    # A process beside the sandbox has the key and sees it listed; a command has it nowhere, and where it is confined it
    # does not even see that there is one.
    assert done.stdout.splitlines()[:3] == ["True", "True", f"{level} False False"], done.stderr
    assert done.stdout.splitlines()[3].startswith(f"{IsolationLevel.NONE} False")
