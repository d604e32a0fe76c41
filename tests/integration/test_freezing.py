"""Whoever runs in a workspace stands still while the fleet asks for it, goes on afterwards, and nobody else does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.sandbox import Rung, Sandbox, SandboxPolicy
from swe_ai_fleet.sandbox.interactive import InteractiveCommand, InteractiveProcess
from tests.confinement import RUNGS, living, needs_bwrap, python, shell, token

# Forks without end, so that no single look at its processes shows them all.
FORKING = "while [ ! -e stop ]; do (echo >>ticks); done"


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


def ticks(root: Path) -> int:
    return (root / "ticks").stat().st_size if (root / "ticks").exists() else 0


def states(word: str) -> set[str]:
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in living(word)}


def directory(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("rung", RUNGS)
async def test_commands_stand_still_and_nobody_else(rung: Rung, tmp_path: Path) -> None:
    sandbox = Sandbox(SandboxPolicy(rung=rung))
    root, elsewhere = directory(tmp_path / "tree"), directory(tmp_path / "other")
    async with sandbox.workspace(root) as workspace, sandbox.workspace(elsewhere) as other:
        running = asyncio.create_task(workspace.run(shell(FORKING)))
        await until(lambda: ticks(root))
        async with workspace.frozen():
            before = ticks(root)
            assert (await other.run(python("sum(range(10**7))"))).ok
            assert ticks(root) == before
        await until(lambda: ticks(root) > before)
        (root / "stop").touch()
        assert (await running).ok


@pytest.mark.parametrize("rung", RUNGS)
async def test_a_command_that_comes_meanwhile_begins_afterwards(rung: Rung, tmp_path: Path) -> None:
    async with Sandbox(SandboxPolicy(rung=rung)).workspace(tmp_path) as workspace:
        async with workspace.frozen():
            coming = asyncio.create_task(workspace.run(shell(": >came")))
            async with Sandbox(SandboxPolicy(rung=rung)).workspace(directory(tmp_path / "other")) as other:
                assert (await other.run(Command(argv=("true",)))).ok
            assert not (tmp_path / "came").exists()
        assert (await coming).ok
        assert (tmp_path / "came").exists()


@pytest.mark.parametrize("rung", RUNGS)
async def test_they_go_on_though_whoever_froze_them_is_cancelled(rung: Rung, tmp_path: Path) -> None:
    async with Sandbox(SandboxPolicy(rung=rung)).workspace(tmp_path) as workspace:
        running = asyncio.create_task(workspace.run(shell(FORKING)))
        await until(lambda: ticks(tmp_path))
        inside = asyncio.Event()

        async def freeze() -> None:
            async with workspace.frozen():
                inside.set()
                await asyncio.Event().wait()

        freezing = asyncio.create_task(freeze())
        await inside.wait()
        before = ticks(tmp_path)
        freezing.cancel()
        await asyncio.wait([freezing])
        await until(lambda: ticks(tmp_path) > before)
        (tmp_path / "stop").touch()
        assert (await running).ok


@pytest.mark.parametrize("rung", RUNGS)
async def test_who_had_stopped_himself_stays_so_and_all_can_be_killed_meanwhile(rung: Rung, tmp_path: Path) -> None:
    seconds = token()
    async with Sandbox(SandboxPolicy(rung=rung)).workspace(tmp_path) as workspace:
        running = asyncio.create_task(workspace.run(shell(f"sleep {seconds} & kill -STOP $!; wait")))
        await until(lambda: "T" in states(seconds))
        async with workspace.frozen():
            pass
        assert "T" in states(seconds)
        async with workspace.frozen():
            running.cancel()
            await asyncio.wait([running])
            assert not living(seconds)


@needs_bwrap
async def test_a_confined_program_stands_still_too(tmp_path: Path) -> None:
    sandbox = Sandbox(SandboxPolicy(rung=Rung.BUBBLEWRAP))
    writing = InteractiveCommand(argv=("sh", "-c", f"cd /workspace && {FORKING}"))
    async with sandbox.workspace(tmp_path) as workspace:
        program = await InteractiveProcess.start(workspace.root, writing, policy=sandbox.policy)
        try:
            await until(lambda: ticks(tmp_path))
            async with workspace.frozen():
                before = ticks(tmp_path)
                async with sandbox.workspace(directory(tmp_path / "other")) as other:
                    assert (await other.run(python("sum(range(10**7))"))).ok
                assert ticks(tmp_path) == before
            await until(lambda: ticks(tmp_path) > before)
        finally:
            await program.kill()
