"""A candidate as an agent hands it in, and calls as they stand in its audit chain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from swe_ai_fleet.domain.audit import GENESIS, AuditEntry
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate
from swe_ai_fleet.domain.event import ToolFinished, ToolStarted
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason


def a_candidate(name: str, *, diff: str = "", **changes: object) -> Candidate:
    """One of an agent of that name, with a change that a digest stands for: `diff`, or its name."""
    digest = diff or name
    base = Candidate(
        candidate_id=name,
        agent_id=name,
        role=Role.DEV,
        summary=f"{name} did it best",
        stop_reason=StopReason.FINAL_ANSWER,
        artifacts=Artifacts(patch=BlobRef(name=f"t/e/{digest}", digest=digest, size=1), insertions=1),
        usage=Usage(),
        audit_head="",
        submitted_at="2026-01-01T00:00:00+00:00",
    )
    return replace(base, **changes)


class AuditChain:
    """An audit chain that grows call by call; `head` is where it stands."""

    def __init__(self) -> None:
        self.head = GENESIS
        self._seq = count(1)

    def call(self, result: ToolResult, **fields: object) -> Iterator[ToolStarted | ToolFinished]:
        """That a call began, and what came of it."""
        for outcome in (Outcome.STARTED, Outcome.SUCCESS):
            entry = AuditEntry(seq=next(self._seq), outcome=outcome, **fields).sealed(self.head)
            self.head = entry.hash
            started = outcome is Outcome.STARTED
            yield ToolStarted(entry=entry) if started else ToolFinished(entry=entry, result=result)
