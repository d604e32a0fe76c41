"""What trying one part of an installation gave."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum

from swe_ai_fleet.domain.errors import FleetError


class Health(StrEnum):
    """`absent` is something optional that is not there."""

    OK = "ok"
    ABSENT = "absent"
    FAULT = "fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What trying one part gave. `cause` says what was found, `mend` what to do where it is not well."""

    part: str
    state: Health
    version: str = ""
    cause: str = ""
    mend: str = ""


def faulty(
    part: str, error: FleetError | TimeoutError, mend: str = "", *, version: str = "", seconds: float = 0.0
) -> Finding:
    """What is found of a part that raises, or says nothing within so many seconds; `mend` where it does not say it."""
    if isinstance(error, FleetError):
        return Finding(part=part, state=Health.FAULT, version=version, cause=error.message, mend=error.hint or mend)
    cause = f"no answer within {seconds:g} seconds"
    return Finding(part=part, state=Health.FAULT, version=version, cause=cause, mend=mend)


async def output(*argv: str, seconds: float) -> tuple[int, str]:
    """(exit code, output) of a program; 124 when it took too long."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        return 126, str(error)
    try:
        async with asyncio.timeout(seconds):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return 124, f"no answer within {seconds:g} seconds"
    return process.returncode or 0, said.decode("utf-8", "replace")
