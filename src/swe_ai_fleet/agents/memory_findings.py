"""What searching memory gave a run, for whoever decides about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from swe_ai_fleet.agents.sub_agents.memory import MemoryResults, MemorySearch
from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.approval import MemoryFindings
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.trajectory import Step
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.truncation import beginning

MAX_CONTENT_CHARS = 16_000
MAX_NAMED = 100
"""Gaps, and sources, that are shown."""
_NAME_CHARS = 500
_log = structlog.get_logger(__name__)


def findings(searches: Iterable[MemoryResults], mask: SecretMask) -> MemoryFindings | None:
    """All searches as one; None where nothing was asked. What any of them found is no gap."""
    asked: dict[str, bool] = {}
    passages: dict[str, None] = {}
    sources: dict[str, None] = {}
    for found in searches:
        gaps = frozenset(found.gaps)
        for text in found.asked or found.gaps:
            asked[text] = asked.get(text, False) or text not in gaps
        passages |= dict.fromkeys([found.content] if found.content else [])
        sources |= dict.fromkeys(found.sources)
    if not asked:
        return None
    missing = [text for text, known in asked.items() if not known]
    return MemoryFindings(
        coverage=round(100 * (len(asked) - len(missing)) / len(asked), 1),
        gaps=tuple(mask(text)[:_NAME_CHARS] for text in missing[:MAX_NAMED]),
        sources=tuple(mask(text)[:_NAME_CHARS] for text in list(sources)[:MAX_NAMED]),
        content=beginning(mask("\n\n".join(passages)), MAX_CONTENT_CHARS),
    )


def searches_in(steps: Sequence[Step]) -> list[MemoryResults]:
    """What the searches of a run's earlier steps gave."""
    found: list[MemoryResults] = []
    for result in (seen.result for step in steps for seen in step.observations):
        if result.success and result.operation == "search_memory":
            try:
                found.append(from_plain(MemoryResults, dict(result.metadata)))
            except ValueError:
                # A chat's tool of that name, or another version's: its text stands in the history all the same.
                continue
    return found


async def asked_about(memory: MemorySearch, entities: Sequence[str]) -> list[MemoryResults]:
    """What memory knows of the names that a task is about; nothing where it names none or memory cannot be asked."""
    if not entities:
        return []
    try:
        found = await memory.search(entities, ())
    except FleetError as fault:
        _log.warning("memory.entities_not_asked", reason=fault.message[:200])
        return []
    return [
        MemoryResults(
            coverage=found.coverage,
            content=found.content,
            gaps=found.gaps,
            sources=found.sources,
            asked=tuple(entities),
        )
    ]
