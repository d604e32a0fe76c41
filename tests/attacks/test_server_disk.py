"""Programs that stay (MCP servers) fill no more of the disk than commands may."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swe_ai_fleet.sandbox import SandboxPolicy
from swe_ai_fleet.sandbox.interactive import InteractiveCommand, InteractiveProcess
from tests.confinement import needs_bwrap

MIB = 1024**2
FILL = "for i in $(seq {count}); do head -c 1048576 /dev/zero >>{place}; done; echo filled; cat"
SMALL, LARGE = 32 * MIB, 10 * 1024 * MIB


async def started(root: Path, place: str, limit: int, count: int) -> InteractiveProcess:
    root.mkdir()
    command = InteractiveCommand(argv=("sh", "-c", FILL.format(place=place, count=count)))
    return await InteractiveProcess.start(root, command, policy=SandboxPolicy(max_disk_bytes=limit))


@needs_bwrap
@pytest.mark.parametrize("place", ["/workspace/x", "$HOME/x", "/tmp/x"])
async def test_a_server_that_fills_the_disk_is_killed(tmp_path: Path, place: str) -> None:
    process = await started(tmp_path / "tree", place, SMALL, 2_000)
    try:
        async with asyncio.timeout(30):
            assert await process.stdout.read() == b""
            assert await process.wait()
        assert "disk limit" in process.errors().text()
    finally:
        await process.kill()


@needs_bwrap
async def test_control_with_a_larger_limit_it_fills(tmp_path: Path) -> None:
    process = await started(tmp_path / "tree", "/workspace/x", LARGE, 256)
    try:
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"filled\n"
        assert (tmp_path / "tree/x").stat().st_size == 256 * MIB
    finally:
        await process.kill()
