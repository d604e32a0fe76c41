"""Options that are given as `K=V`."""

from __future__ import annotations

from collections.abc import Sequence

from swe_ai_fleet.cli.exits import CommandFault, Exit


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """The values by name. Raises CommandFault naming the option where one is no `K=V`."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise CommandFault(f"{text[:80]!r} is not K=V", exit_code=Exit.USAGE, field=option.lstrip("-"))
        found[name] = value
    return found
