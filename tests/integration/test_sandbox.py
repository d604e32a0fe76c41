"""The sandbox on the real kernel: what commands get, what outlives them (nothing), what they cannot do."""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.sandbox import (
    Attack,
    CpuSlots,
    LocalWorkspace,
    Rung,
    Sandbox,
    SandboxPolicy,
    examine_sandbox,
    open_workspace,
)
from swe_ai_fleet.sandbox.attacks import probe_workspace
from swe_ai_fleet.sandbox.control_groups import ControlGroups
from swe_ai_fleet.sandbox.landlock import Landlock
from swe_ai_fleet.sandbox.workspace import Host

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root is at risk")

LANDLOCK = pytest.param(
    Rung.LANDLOCK, marks=pytest.mark.skipif(Landlock.find() is None, reason="the kernel offers no Landlock")
)
CONFINED = [pytest.param(Rung.BUBBLEWRAP, marks=needs_bwrap), LANDLOCK]
RUNGS = [*CONFINED, Rung.NONE]


@pytest.fixture(params=RUNGS)
async def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalWorkspace]:
    """A workspace on every rung: what a command gets is the same on each."""
    sandbox = Sandbox(SandboxPolicy(rung=request.param, grace_seconds=0.3))
    (tmp_path / "ws").mkdir()
    async with sandbox.workspace(tmp_path / "ws") as opened:
        yield opened


@pytest.fixture
async def confined(tmp_path: Path) -> AsyncIterator[LocalWorkspace]:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    (tmp_path / "ws").mkdir()
    sandbox = Sandbox(SandboxPolicy(max_processes=64, max_memory_bytes=256 * 1024**2, grace_seconds=0.3))
    async with sandbox.workspace(tmp_path / "ws") as opened:
        yield opened


def shell(script: str, **options: object) -> Command:
    return Command(argv=("sh", "-c", script), **options)  # pyright: ignore[reportArgumentType]


def python(script: str, *arguments: str, **options: object) -> Command:
    return Command(argv=("python3", "-c", script, *arguments), **options)  # pyright: ignore[reportArgumentType]


def living(token: str) -> list[int]:
    """Processes of this machine that carry `token` on their command line."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if token.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def token() -> str:
    """A number of seconds that no other process sleeps for."""
    return f"86{secrets.randbelow(10**6):06d}.{secrets.randbelow(10**6):06d}1"


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the kernel does not announce."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


# What a command gets


@pytest.mark.parametrize("code", [0, 1, 42, 255])
async def test_exit_codes(workspace: LocalWorkspace, code: int) -> None:
    assert (await workspace.run(shell(f"exit {code}"))).exit_code == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
async def test_death_by_signal_is_128_plus_its_number(workspace: LocalWorkspace, number: signal.Signals) -> None:
    result = await workspace.run(shell(f"kill -{int(number)} $$"))
    assert (result.exit_code, result.stderr.text()) == (128 + number, "")
    assert (await workspace.run(Command(argv=("true",)))).ok


async def test_missing_program_and_missing_directory(workspace: LocalWorkspace) -> None:
    missing = await workspace.run(Command(argv=("no-such-program",)))
    assert missing.exit_code == 127
    assert "not found" in missing.stderr.text()
    nowhere = await workspace.run(Command(argv=("true",), cwd="nowhere"))
    assert (nowhere.exit_code, "nowhere" in nowhere.stderr.text()) == (126, True)


NASTY = (
    "", " ", "a b", "new\nline\n", "\n", "'", "'\\''", '"', "$HOME", "`id`", "$(id)", "\\", "\\n", "*", "~", "#x",
    "a;b", "é ü 漢字 🚀", "\r\n\t", "\x01\x7f", "-n", "--", "!x", "{a,b}", "x" * 100_000, "<<EOF", "EOF\n",
    "fleet_end\n",
)  # fmt: skip
PRINT = "import sys, os; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"


async def test_nasty_arguments_arrive_as_they_are(workspace: LocalWorkspace) -> None:
    result = await workspace.run(python(PRINT, *NASTY))
    assert result.stdout.head.split(b"\0") == [argument.encode() for argument in NASTY]


async def test_every_byte_arrives_as_it_is(workspace: LocalWorkspace) -> None:
    every = b"".join(bytes((value,)) for value in range(1, 256)) * 2
    result = await workspace.run(python(PRINT, os.fsdecode(every)))
    assert result.stdout.head == every


async def test_directory_variables_and_standard_input(workspace: LocalWorkspace) -> None:
    (workspace.root / "sub dir").mkdir()
    script = 'pwd; printf \'%s|\' "$A" "$HOME"; cat; cd; pwd'
    result = await workspace.run(shell(script, cwd="sub dir", variables={"A": "x\n'y'"}))
    lines = result.stdout.text()
    assert lines.startswith(f"{workspace.mount}/sub dir\nx\n'y'|")
    assert (await workspace.run(shell('echo "[$A]"'))).stdout.text() == "[]\n"


async def test_streams_are_kept_apart_or_merged(workspace: LocalWorkspace) -> None:
    script = "echo one; echo two >&2; echo three"
    apart = await workspace.run(shell(script))
    assert (apart.stdout.text(), apart.stderr.text()) == ("one\nthree\n", "two\n")
    merged = await workspace.run(shell(script, merge_stderr=True))
    assert (merged.stdout.text(), merged.stderr.text()) == ("one\ntwo\nthree\n", "")


async def test_commands_share_files_home_and_tmp(workspace: LocalWorkspace) -> None:
    await workspace.run(shell('echo w > w; echo h > "$HOME/h"; echo t > "$TMPDIR/t"'))
    assert (await workspace.run(shell('cat w "$HOME/h" "$TMPDIR/t"'))).stdout.text() == "w\nh\nt\n"
    assert (workspace.root / "w").read_text() == "w\n"


async def test_the_toolchain_works(workspace: LocalWorkspace) -> None:
    script = "import ssl, sqlite3, multiprocessing; multiprocessing.Lock(); import sys; print(sys.version_info[:2])"
    result = await workspace.run(python(script))
    assert result.stdout.text() == f"{sys.version_info[:2]}\n", result.stderr.text()
    assert (await workspace.run(shell("git --version && id -u && sort </dev/null"))).ok


async def test_a_flood_is_bounded_in_memory_and_time(workspace: LocalWorkspace) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    result = await workspace.run(
        shell("echo first; head -c 200000000 /dev/zero | tr '\\0' y; echo; echo last", output_limit=10_000)
    )
    assert result.ok
    assert result.stdout.total == 200_000_000 + len("first\n\nlast\n")
    assert len(result.stdout.head) == len(result.stdout.tail) == 10_000
    assert result.stdout.head.startswith(b"first\n")
    assert result.stdout.tail.endswith(b"\nlast\n")
    assert time.monotonic() - started < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


async def test_a_command_that_makes_the_pipes_non_blocking_does_not_disturb_the_next(
    workspace: LocalWorkspace,
) -> None:
    await workspace.run(python("import os; os.set_blocking(1, False); os.set_blocking(2, False)"))
    result = await workspace.run(shell("head -c 3000000 /dev/zero"))
    assert (result.exit_code, result.stdout.total) == (0, 3_000_000)


async def test_large_commands_pass_the_control_pipe(workspace: LocalWorkspace) -> None:
    arguments = ["y" * 100_000] * 8
    result = await workspace.run(python("import sys; print(sum(map(len, sys.argv)))", *arguments))
    assert result.stdout.text() == "800002\n"


# What outlives a command


async def test_descendants_are_dead_on_return(workspace: LocalWorkspace) -> None:
    sleeper = token()
    script = f"""
        sleep {sleeper} &
        setsid sleep {sleeper} &
        (setsid sh -c '(sleep {sleeper} &) ; exit' &)
        env -i sleep {sleeper} &
        nohup sleep {sleeper} >/dev/null 2>&1 &
        running() {{
            n=0
            for p in /proc/[0-9]*/cmdline; do
                [ "$(tr '\\0' ' ' <$p)" = 'sleep {sleeper} ' ] && n=$((n + 1))
            done 2>/dev/null
            echo $n
        }}
        while [ $(running) -lt 5 ]; do :; done
        echo done
    """
    result = await workspace.run(shell(script, timeout_seconds=30))
    assert (result.stdout.text(), result.exit_code) == ("done\n", 0)
    assert living(sleeper) == []


async def test_children_that_hold_the_pipes_do_not_delay_the_return(workspace: LocalWorkspace) -> None:
    sleeper = token()
    started = time.monotonic()
    result = await workspace.run(shell(f"setsid sleep {sleeper} & echo out"))
    assert (result.stdout.text(), time.monotonic() - started < 5) == ("out\n", True)
    assert living(sleeper) == []


async def test_time_out_kills_and_returns_what_there_was(workspace: LocalWorkspace) -> None:
    sleeper = token()
    result = await workspace.run(shell(f"echo partial; setsid sleep {sleeper} & sleep {sleeper}", timeout_seconds=0.3))
    assert (result.timed_out, result.idle, result.ok) == (True, False, False)
    assert result.stdout.text() == "partial\n"
    assert living(sleeper) == []
    assert (await workspace.run(Command(argv=("true",)))).ok


async def test_time_out_lets_a_command_tidy_up(workspace: LocalWorkspace) -> None:
    script = "trap 'echo tidied; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    result = await workspace.run(shell(script, timeout_seconds=0.5))
    assert (result.timed_out, result.exit_code, result.stdout.text()) == (True, 9, "ready\ntidied\n")


async def test_a_command_that_ignores_the_request_is_killed_after_the_grace(workspace: LocalWorkspace) -> None:
    sleeper = token()
    script = f"trap '' TERM; echo ready; setsid sleep {sleeper} & while :; do sleep {sleeper}; done"
    result = await workspace.run(shell(script, timeout_seconds=0.3))
    assert (result.timed_out, result.exit_code) == (True, 137)
    assert 600 <= result.duration_ms < 5000
    assert living(sleeper) == []


async def test_silence_ends_a_command_and_output_keeps_it_alive(workspace: LocalWorkspace) -> None:
    silent = await workspace.run(shell("echo a; sleep 60", idle_timeout_seconds=0.3))
    assert (silent.timed_out, silent.idle, silent.stdout.text()) == (True, True, "a\n")
    chatty = await workspace.run(shell("for i in 1 2 3 4 5 6; do sleep 0.1; echo $i; done", idle_timeout_seconds=0.4))
    assert (chatty.ok, chatty.duration_ms >= 600) == (True, True)


async def test_cancellation_kills_at_once(workspace: LocalWorkspace) -> None:
    sleeper = token()
    script = f"trap '' TERM; setsid sleep {sleeper} & sleep {sleeper}"
    task = asyncio.create_task(workspace.run(shell(script)))
    await until(lambda: len(living(sleeper)) >= 2)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 0.3
    assert living(sleeper) == []
    assert (await workspace.run(Command(argv=("true",)))).ok


async def test_cancellation_while_a_session_starts(workspace: LocalWorkspace) -> None:
    for delay in (0.0, 0.001, 0.003, 0.006):
        task = asyncio.create_task(workspace.run(Command(argv=("true",))))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert (await workspace.run(Command(argv=("true",)))).ok


async def test_parallel_commands_do_not_kill_each_other(workspace: LocalWorkspace) -> None:
    async def quick() -> CommandResult:
        return await workspace.run(shell("sleep 100 & exit 5"))

    slow = asyncio.create_task(workspace.run(shell("sleep 1; echo survived")))
    for _ in range(5):
        assert {result.exit_code for result in await asyncio.gather(*(quick() for _ in range(10)))} == {5}
    assert (await slow).stdout.text() == "survived\n"


async def test_closing_kills_what_runs(workspace: LocalWorkspace) -> None:
    sleeper = token()
    task = asyncio.create_task(workspace.run(Command(argv=("sleep", sleeper))))
    await until(lambda: bool(living(sleeper)))
    await workspace.close()
    assert (await task).exit_code == 137
    assert living(sleeper) == []
    with pytest.raises(PreconditionFailed):
        await workspace.run(Command(argv=("true",)))


async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    scratch, root = tmp_path / "scratch", tmp_path / "ws"
    scratch.mkdir()
    root.mkdir()
    before = set(os.listdir("/proc/self/fd"))
    async with Sandbox(SandboxPolicy(rung=Rung.NONE)).workspace(root, scratch=scratch) as workspace:
        await workspace.run(shell('mkdir -p "$HOME/a/b"; touch "$HOME/a/b/c"; chmod 0 "$HOME/a/b" "$HOME/a"'))
        assert len(list(scratch.iterdir())) == 1
    assert list(scratch.iterdir()) == []
    assert set(os.listdir("/proc/self/fd")) == before


@needs_bwrap
async def test_a_killed_parent_takes_its_sandboxes_along(tmp_path: Path) -> None:
    sleeper = token()
    script = """
import asyncio, sys
from pathlib import Path
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy

async def main():
    async with Sandbox(SandboxPolicy()).workspace(Path(sys.argv[1]), scratch=Path(sys.argv[1])) as workspace:
        await workspace.run(Command(argv=("sh", "-c", f"setsid sleep {sys.argv[2]} & sleep {sys.argv[2]}")))

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(tmp_path), sleeper)
    # The script itself and the shell carry the token too.
    await until(lambda: len(living(sleeper)) >= 4)
    process.kill()
    await process.wait()
    await until(lambda: not living(sleeper))


# What a command cannot do


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
    pid_one = await confined.run(shell("ls -l /proc/1/fd"))
    assert pid_one.stdout.text().count("pipe:") == 2, "only the command's own output is open in there"


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
    assert 10 < most <= 64
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


# Many, and their surroundings


@needs_bwrap
async def test_sixty_workspaces_at_once(tmp_path: Path) -> None:
    sandbox = Sandbox(SandboxPolicy())

    async def work(number: int) -> str:
        root = tmp_path / str(number)
        root.mkdir()
        async with sandbox.workspace(root) as workspace:
            await workspace.run(shell(f"echo {number} > mine"))
            return (await workspace.run(shell("ls; cat mine"))).stdout.text()

    outputs = await asyncio.gather(*(work(number) for number in range(60)))
    assert outputs == [f"mine\n{number}\n" for number in range(60)]


@needs_bwrap
async def test_mounts_of_the_environment_are_read_only_and_writable_ones_are_not(tmp_path: Path) -> None:
    for name in ("ws", "env", "cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "env" / "bin").mkdir()
    (tmp_path / "env" / "bin" / "tool").write_text("#!/bin/sh\necho tool $MODE\n")
    (tmp_path / "env" / "bin" / "tool").chmod(0o755)
    environment = Environment(
        path=("/environment/bin",),
        variables={"MODE": "m"},
        mounts=(Mount(source=str(tmp_path / "env"), target="/environment"),),
    )
    writable = (Mount(source=str(tmp_path / "cache"), target="/cache"),)
    async with Sandbox(SandboxPolicy()).workspace(
        tmp_path / "ws", environment=environment, writable=writable
    ) as workspace:
        assert (await workspace.run(Command(argv=("tool",)))).stdout.text() == "tool m\n"
        assert not (await workspace.run(shell("echo x > /environment/x"))).ok
        assert (await workspace.run(shell("echo x > /cache/x"))).ok
    assert (tmp_path / "cache" / "x").read_text() == "x\n"


async def test_without_a_sandbox_mounts_are_refused(tmp_path: Path) -> None:
    environment = Environment(mounts=(Mount(source="/usr", target="/x"),))
    with pytest.raises(PreconditionFailed):
        Sandbox(SandboxPolicy(rung=Rung.NONE)).workspace(tmp_path, environment=environment)


@needs_bwrap
async def test_a_sandbox_that_does_not_start_says_why(tmp_path: Path) -> None:
    environment = Environment(mounts=(Mount(source=str(tmp_path / "missing"), target="/x"),))
    async with Sandbox(SandboxPolicy()).workspace(tmp_path, environment=environment) as workspace:
        with pytest.raises(PreconditionFailed, match="missing"):
            await workspace.run(Command(argv=("true",)))


async def test_the_time_limit_counts_from_the_slot(tmp_path: Path) -> None:
    slots = CpuSlots(tmp_path / "slots", 1)
    async with Sandbox(SandboxPolicy(rung=Rung.NONE), slots).workspace(tmp_path) as workspace:
        first = asyncio.create_task(workspace.run(shell("sleep 0.6")))
        await asyncio.sleep(0)
        second = asyncio.create_task(workspace.run(shell("sleep 0.2", timeout_seconds=0.5)))
        assert (await workspace.run(Command(argv=("true",), light=True, timeout_seconds=0.5))).ok
        assert not first.done()
        assert (await second).ok
        assert first.done()


@needs_bwrap
async def test_the_convenience_and_the_report(tmp_path: Path) -> None:
    async with open_workspace(tmp_path) as workspace:
        assert (await workspace.run(Command(argv=("pwd",)))).stdout.text() == "/workspace\n"
    report = await examine_sandbox("auto")
    assert report.rung is Rung.BUBBLEWRAP
    assert {Attack.FILES, Attack.NETWORK, Attack.PROCESSES, Attack.FORK_BOMB} <= set(report.closes)
    assert set(report.leaves_open) | set(report.closes) == set(Attack)
    assert (await examine_sandbox("none")).rung is Rung.NONE


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


@pytest.mark.slow
async def test_a_gigabyte_of_output_is_bounded_in_memory_and_time(workspace: LocalWorkspace) -> None:
    await workspace.run(Command(argv=("true",)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await workspace.run(shell("yes | head -c 1073741824", output_limit=100_000, timeout_seconds=120))
    assert (result.exit_code, result.stdout.total) == (0, 2**30)
    assert len(result.stdout.head) + len(result.stdout.tail) == 200_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000
    assert result.duration_ms < 60_000


async def test_a_flood_into_a_silent_child_ends_with_its_time(workspace: LocalWorkspace) -> None:
    result = await workspace.run(shell("yes & yes >&2 & yes", output_limit=10_000, timeout_seconds=0.5))
    assert (result.timed_out, result.duration_ms < 5000) == (True, True)
    assert len(result.stdout.head) == len(result.stderr.tail) == 10_000
    assert (await workspace.run(Command(argv=("true",)))).ok


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
