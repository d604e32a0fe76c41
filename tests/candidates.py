"""A candidate as an agent hands it in."""

from __future__ import annotations

from dataclasses import replace

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate
from swe_ai_fleet.domain.task import Role
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
    return replace(base, **changes)  # pyright: ignore[reportArgumentType]
