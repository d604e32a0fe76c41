"""Sandboxes of workspaces: many at once, their mounts, their slots, and what is said where none starts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.sandbox import (
    Attack,
    CpuSlots,
    Rung,
    Sandbox,
    SandboxPolicy,
    examine_sandbox,
    open_workspace,
)
from tests.confinement import needs_bwrap, shell


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
