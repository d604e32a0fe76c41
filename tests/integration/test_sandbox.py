"""What a command gets in each kind of sandbox, what it cannot see or change, and that nothing outlives it."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.sandbox import IsolationLevel, LocalWorkspace, Sandbox, SandboxPolicy, open_workspace
from swe_ai_fleet.testing.repositories import write_files
from tests.confinement import (
    MAINLY_BWRAP,
    living,
    needs_bwrap,
    python,
    shell,
    token,
    until,
)

TRUE = Command(argv=("true",))
NASTY = (
    "", " ", "a b", "new\nline\n", "\n", "'", "'\\''", '"', "$HOME", "`id`", "$(id)", "\\", "\\n", "*", "~", "#x",
    "a;b", "é ü 漢字 🚀", "\r\n\t", "\x01\x7f", "-n", "--", "!x", "{a,b}", "x" * 100_000, "<<EOF", "EOF\n",
    "fleet_end\n",
)  # fmt: skip
PRINT = "import sys, os; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"


def directory(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.fixture(params=MAINLY_BWRAP)
async def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalWorkspace]:
    """A workspace on every isolation level: what a command gets is the same on each."""
    sandbox = Sandbox(SandboxPolicy(level=request.param, grace_seconds=0.3))
    async with sandbox.workspace(directory(tmp_path / "ws")) as opened:
        yield opened


async def test_how_a_command_ended_is_said(workspace: LocalWorkspace) -> None:
    sleeper = token()
    for code in (0, 42):
        left = f"setsid sleep {sleeper} & (setsid sh -c '(sleep {sleeper} &); exit' &); exit {code}"
        assert (await workspace.run(shell(left))).exit_code == code
        assert living(sleeper) == []
    for number in (signal.SIGTERM, signal.SIGKILL):
        result = await workspace.run(shell(f"kill -{int(number)} $$"))
        assert (result.exit_code, result.stderr.text()) == (128 + number, "")
    missing = await workspace.run(Command(argv=("no-such-program",)))
    assert (missing.exit_code, "not found" in missing.stderr.text()) == (127, True)
    nowhere = await workspace.run(Command(argv=("true",), cwd="nowhere"))
    assert (nowhere.exit_code, "nowhere" in nowhere.stderr.text()) == (126, True)


async def test_arguments_arrive_as_they_are(workspace: LocalWorkspace) -> None:
    result = await workspace.run(python(PRINT, *NASTY))
    assert result.stdout.head.split(b"\0") == [argument.encode() for argument in NASTY]


async def test_directory_variables_home_and_streams(workspace: LocalWorkspace) -> None:
    (workspace.root / "sub dir").mkdir()
    script = 'pwd; printf \'%s|\' "$A" "$HOME"; cat; cd; pwd'
    result = await workspace.run(shell(script, cwd="sub dir", variables={"A": "x\n'y'"}))
    assert result.stdout.text().startswith(f"{workspace.mount}/sub dir\nx\n'y'|")
    assert (await workspace.run(shell('echo "[$A]"'))).stdout.text() == "[]\n"
    script = "echo one; echo two >&2; echo three"
    apart = await workspace.run(shell(script))
    assert (apart.stdout.text(), apart.stderr.text()) == ("one\nthree\n", "two\n")
    merged = await workspace.run(shell(script, merge_stderr=True))
    assert (merged.stdout.text(), merged.stderr.text()) == ("one\ntwo\nthree\n", "")
    await workspace.run(shell('echo w > w; echo h > "$HOME/h"; echo t > "$TMPDIR/t"'))
    assert (await workspace.run(shell('cat w "$HOME/h" "$TMPDIR/t"'))).stdout.text() == "w\nh\nt\n"
    assert (workspace.root / "w").read_text() == "w\n"


async def test_time_limits(workspace: LocalWorkspace) -> None:
    sleeper = token()
    result = await workspace.run(shell(f"echo partial; setsid sleep {sleeper} & sleep {sleeper}", timeout_seconds=0.3))
    assert (result.timed_out, result.idle, result.ok) == (True, False, False)
    assert (result.stdout.text(), living(sleeper)) == ("partial\n", [])
    tidy = "trap 'echo tidied; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    result = await workspace.run(shell(tidy, timeout_seconds=0.5))
    assert (result.timed_out, result.exit_code, result.stdout.text()) == (True, 9, "ready\ntidied\n")
    # One that ignores the request is killed after the grace.
    deaf = f"trap '' TERM; echo ready; setsid sleep {sleeper} & while :; do sleep {sleeper}; done"
    result = await workspace.run(shell(deaf, timeout_seconds=0.3))
    assert (result.timed_out, result.exit_code) == (True, 137)
    assert 600 <= result.duration_ms < 30_000
    assert living(sleeper) == []
    silent = await workspace.run(shell("echo a; sleep 0.1; echo b; sleep 60", idle_timeout_seconds=0.3))
    assert (silent.timed_out, silent.idle, silent.stdout.text()) == (True, True, "a\nb\n")


async def test_cancelling_and_closing_kill_at_once(workspace: LocalWorkspace) -> None:
    sleeper = token()
    task = asyncio.create_task(workspace.run(shell(f"trap '' TERM; setsid sleep {sleeper} & sleep {sleeper}")))
    await until(lambda: len(living(sleeper)) >= 2)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 5
    assert living(sleeper) == []
    task = asyncio.create_task(workspace.run(Command(argv=("sleep", sleeper))))
    await until(lambda: living(sleeper))
    await workspace.close()
    assert ((await task).exit_code, living(sleeper)) == (137, [])
    with pytest.raises(PreconditionFailed):
        await workspace.run(TRUE)


# --- mounts, slots, control groups ---


@needs_bwrap
async def test_mounts_of_the_environment_are_read_only_and_writable_ones_are_not(tmp_path: Path) -> None:
    write_files(tmp_path, {"env/bin/tool": "#!/bin/sh\necho tool $MODE\n", "env/bin/git": "#!/bin/sh\necho ours\n"})
    for name in ("ws", "cache"):
        (tmp_path / name).mkdir()
    for tool in (tmp_path / "env/bin").iterdir():
        tool.chmod(0o755)
    shown = (Mount(source=str(tmp_path / "env"), target="/environment"),)
    environment = Environment(path=("/environment/bin",), variables={"MODE": "m"}, mounts=shown)
    writable = (Mount(source=str(tmp_path / "cache"), target="/cache"),)
    opened = Sandbox(SandboxPolicy()).workspace(tmp_path / "ws", environment=environment, writable=writable)
    async with opened as workspace:
        # Its path comes before all others.
        assert (await workspace.run(shell("tool; git"))).stdout.text() == "tool m\nours\n"
        assert not (await workspace.run(shell("echo x > /environment/x"))).ok
        assert (await workspace.run(shell("echo x > /cache/x"))).ok
    assert (tmp_path / "cache/x").read_text() == "x\n"
    # Without namespaces they must stand where they are.
    with pytest.raises(PreconditionFailed, match="/environment"):
        landlock = Sandbox(SandboxPolicy(level=IsolationLevel.LANDLOCK))
        async with landlock.workspace(tmp_path, environment=environment) as workspace:
            await workspace.run(TRUE)


# --- what bubblewrap hides; what every isolation level hides is in test_sandbox_attacks.py ---

OPEN_ALL = """
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


@needs_bwrap
async def test_what_bubblewrap_hides(tmp_path: Path) -> None:
    async with open_workspace(tmp_path) as confined:

        async def said(script: str) -> str:
            result = await confined.run(shell(script))
            return result.stdout.text() + result.stderr.text()

        # Programs that would ask for packages are told that there is no network.
        assert await said("pwd; echo $GOPROXY $CARGO_NET_OFFLINE") == "/workspace\noff true\n"
        assert int(await said("ls -d /proc/[0-9]* | wc -l")) <= 5
        for path in ("/var", "/sys", "/boot", str(tmp_path.parent)):
            assert not (await confined.run(Command(argv=("ls", path)))).ok, path
        # What those above it have open is not to be seen either.
        looked = await said("for f in fd/3 fd/5 environ mem; do (: <> /proc/$PPID/$f) 2>&- && echo $f; done; echo end")
        assert looked == "end\n"
        seen = await said("{ for f in /proc/1/fd/*; do readlink $f; done; ls -l /proc/1/exe /proc/1/cwd; } 2>&-")
        assert "->" not in seen and "pipe:" not in seen
        status = await said("grep -E 'Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs' /proc/self/status; ulimit -c")
        assert status.count("0000000000000000") == 4
        assert "NoNewPrivs:\t1" in status and status.endswith("\n0\n")
        opened = await confined.run(python(OPEN_ALL))
        assert (opened.exit_code, opened.stdout.text()) == (0, "")


# --- whoever runs in a workspace stands still while the fleet asks for it ---

# Forks without end, so that no single look at its processes shows them all.
FORKING = "while [ ! -e stop ]; do (echo >>ticks); done"


def ticks(root: Path) -> int:
    return (root / "ticks").stat().st_size if (root / "ticks").exists() else 0


@pytest.mark.parametrize("level", MAINLY_BWRAP)
async def test_commands_stand_still_and_nobody_else(level: IsolationLevel, tmp_path: Path) -> None:
    sandbox = Sandbox(SandboxPolicy(level=level))
    root, elsewhere = directory(tmp_path / "tree"), directory(tmp_path / "other")
    async with sandbox.workspace(root) as workspace, sandbox.workspace(elsewhere) as other:
        running = asyncio.create_task(workspace.run(shell(FORKING)))
        await until(lambda: ticks(root))
        async with workspace.frozen():
            before = ticks(root)
            coming = asyncio.create_task(workspace.run(shell(": >came")))
            assert (await other.run(python("sum(range(10**7))"))).ok
            assert (ticks(root), (root / "came").exists()) == (before, False)
        # They go on, and what came meanwhile begins.
        await until(lambda: ticks(root) > before)
        assert (await coming).ok and (root / "came").exists()
        (root / "stop").touch()
        assert (await running).ok


async def test_floods_are_bounded_in_memory_and_time(workspace: LocalWorkspace) -> None:
    # A command that makes the pipes non-blocking does not disturb the next ones.
    await workspace.run(python("import os; os.set_blocking(1, False); os.set_blocking(2, False)"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await workspace.run(
        shell("echo first; head -c 20000000 /dev/zero | tr '\\0' y; echo; echo last", output_limit=10_000)
    )
    assert result.ok
    assert result.stdout.total == 20_000_000 + len("first\n\nlast\n")
    assert len(result.stdout.head) == len(result.stdout.tail) == 10_000
    assert result.stdout.head.startswith(b"first\n") and result.stdout.tail.endswith(b"\nlast\n")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000
    endless = await workspace.run(shell("yes & yes >&2 & yes", output_limit=10_000, timeout_seconds=0.5))
    assert (endless.timed_out, endless.duration_ms < 30_000) == (True, True)
    assert len(endless.stdout.head) == len(endless.stderr.tail) == 10_000
    assert (await workspace.run(TRUE)).ok


async def test_processes_are_waited_for_without_threads() -> None:
    # In a process of its own: the watcher is one for all event loops of a process.
    script = """
import asyncio, threading
from swe_ai_fleet.sandbox import prepare_for_processes
async def codes():
    scripts = "exit 3", "kill -9 $$", "sleep 0.3; exit 4"
    started = [await asyncio.create_subprocess_exec("sh", "-c", script) for script in scripts]
    waiting = [asyncio.create_task(process.wait()) for process in started]
    await asyncio.wait(waiting[:2])
    print(threading.active_count(), [await task for task in waiting], flush=True)
prepare_for_processes()
other = threading.Thread(target=lambda: asyncio.run(codes()))
asyncio.run(codes())
other.start()
other.join()
"""
    argv = (sys.executable, "-c", script)
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    # The main thread, and the second time the one beside it.
    assert output == b"1 [3, -9, 4]\n2 [3, -9, 4]\n"
