"""Programs that fetch projects and make their lock files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

SECONDS = 300.0


class Unavailable(Exception):
    """A project that cannot be had, with the reason."""


async def run(argv: Sequence[str], directory: Path, **variables: str) -> str:
    """What a command prints. Raises Unavailable with the end of it where it fails."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=directory,
        env={**os.environ, **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, _ = await process.communicate()
    except TimeoutError:
        raise Unavailable(f"{' '.join(argv)}: still running after {SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise Unavailable(f"{' '.join(argv)}: {out.decode(errors='replace')[-600:]}")
    return out.decode(errors="replace")
