"""What a command gets in each kind of sandbox, and that nothing outlives it."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.sandbox import (
    LocalWorkspace,
    Rung,
    Sandbox,
    SandboxPolicy,
)
from tests.confinement import RUNGS, living, needs_bwrap, python, shell, token


@pytest.fixture(params=RUNGS)
async def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalWorkspace]:
    """A workspace on every rung: what a command gets is the same on each."""
    sandbox = Sandbox(SandboxPolicy(rung=request.param, grace_seconds=0.3))
    (tmp_path / "ws").mkdir()
    async with sandbox.workspace(tmp_path / "ws") as opened:
        yield opened


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the kernel does not announce."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


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
    assert (result.stdout.text(), time.monotonic() - started < 30) == ("out\n", True)
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
    assert 600 <= result.duration_ms < 30_000
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
    assert time.monotonic() - started < 5
    assert living(sleeper) == []
    assert (await workspace.run(Command(argv=("true",)))).ok


@pytest.mark.parametrize("rung", RUNGS)
async def test_cancellation_while_a_session_starts(rung: Rung, tmp_path: Path) -> None:
    root = tmp_path / "ws"
    root.mkdir()
    async with Sandbox(SandboxPolicy(rung=rung, grace_seconds=0.3)).workspace(root) as workspace:
        for number in range(120):
            task = asyncio.create_task(workspace.run(Command(argv=("true",))))
            await asyncio.sleep(number / 15_000)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert (await workspace.run(Command(argv=("true",)))).ok
    # Not even what bubblewrap had just begun: its second process would wait for the first one for ever.
    await until(lambda: living(str(root)) == [])


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
    assert (result.timed_out, result.duration_ms < 30_000) == (True, True)
    assert len(result.stdout.head) == len(result.stderr.tail) == 10_000
    assert (await workspace.run(Command(argv=("true",)))).ok
