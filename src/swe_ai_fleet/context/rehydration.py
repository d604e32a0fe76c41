"""Everything that a session needs to go on after it was lost."""

from __future__ import annotations

from dataclasses import dataclass

from swe_ai_fleet.context.graph import ContextGraph, StoryState, Work
from swe_ai_fleet.domain.context import Decision, GatheredContext, Phase, StoryTask
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.ports import SecretMask


@dataclass(frozen=True, slots=True, kw_only=True)
class StorySession:
    """Where a story stands. `open_tasks` come in the order in which they can be done, `ready` are those that can be now.

    `decisions` are those in force that matter to the role, `work` what the last executions did, the newest first;
    `next_steps` say in words what comes next.
    """

    state: StoryState
    phase: Phase
    open_tasks: tuple[StoryTask, ...] = ()
    ready: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    work: tuple[Work, ...] = ()
    next_steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RehydratedSession:
    """A case's stories (or the one that was named) as they stand, and the same as text for a prompt."""

    case_id: str
    stories: tuple[StorySession, ...]
    context: GatheredContext


def rehydrate(
    graph: ContextGraph,
    *,
    story_id: str = "",
    case_id: str = "",
    role: Role | None = None,
    token_budget: int = 0,
    mask: SecretMask,
) -> RehydratedSession:
    """What a lost session is begun again with, of one story or of all of a case.

    Raises InvalidRequest (neither is named, or they do not belong together), NotFound.
    """
    raise NotImplementedError
