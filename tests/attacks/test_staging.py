"""What the fleet's own git reads of a clone, while a process of that clone swaps directories for links to the host."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.task import EnvironmentSpec
from swe_ai_fleet.sandbox import Rung, Sandbox, SandboxPolicy
from tests.confinement import CONFINED
from tests.environments import make_provider, pin

SECRET = b"the fleet's own token"
FILES = 1_500
_TRIES = 12


def _filled(directory: Path, content: bytes) -> Path:
    directory.mkdir()
    for number in range(FILES):
        (directory / f"f{number:05}").write_bytes(content + b"%d" % number)
    return directory


async def _attacked(rung: Rung, root: Path) -> bytes:
    """Everything that diffs of a clone held while one of its directories was swapped for a link to the host."""
    loot = _filled(root / "loot", SECRET)
    (root / "tools").mkdir()
    provider = make_provider(root, root / "tools", sandbox=Sandbox(SandboxPolicy(rung=rung)))
    repository = await pin(provider, root, {"README": "x\n"})
    environment = await provider.environment(repository, EnvironmentSpec(detect=False))
    held = b""
    async with provider.open("e", "a", repository, environment) as clone:
        await clone.run(Command(argv=("true",)))
        link, kept = clone.root / "link", root / "kept"
        for round_ in range(_TRIES):
            target = _filled(clone.root / f"d{round_}", b"harmless")

            def swap(target: Path = target) -> None:
                # From the host, as a live process of the clone would do it at the worst moment.
                time.sleep(0.01 * (1 + round_))  # noqa: B023 - called within its round
                link.symlink_to(loot)
                target.rename(kept)
                link.rename(target)

            swapping = asyncio.get_running_loop().run_in_executor(None, swap)
            try:
                held += (await clone.diff()).patch
            except PreconditionFailed as fault:
                held += fault.message.encode()
            await swapping
            os.unlink(target)
            for file in kept.iterdir():
                file.unlink()
            kept.rmdir()
            if SECRET in held:
                break
        _filled(clone.root / "calm", b"harmless")
        return held + (await clone.diff()).patch


async def test_control_without_confinement_the_host_is_read(tmp_path: Path) -> None:
    assert SECRET in await _attacked(Rung.NONE, tmp_path)


@pytest.mark.parametrize("rung", CONFINED)
async def test_a_link_swapped_in_leads_git_nowhere(rung: Rung, tmp_path: Path) -> None:
    held = await _attacked(rung, tmp_path)
    # It did read what is the clone's own.
    assert b"harmless" in held
    assert SECRET not in held
