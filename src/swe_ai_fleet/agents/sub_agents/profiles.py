"""Which sub-agents a run is shown from the start."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentTools
from swe_ai_fleet.domain.task import Role

SHOWN: Mapping[Role, frozenset[str]] = {Role.ARCHITECT: frozenset({"search_memory", "call_verifier"})}
"""By role. A schema costs tokens and a choice with each request, so the others ask for what they need."""


def idle_sub_agents(
    role: Role, asked: Collection[str] = (), *, can_research: bool = True
) -> tuple[frozenset[str], frozenset[str]]:
    """(idle, unlisted) as a toolbox takes them: what is not shown at first, and what of it is not told of at all.

    Args:
        role: The run's.
        asked: Operations and toolkits that the task names.
        can_research: Whether anything reaches the web; where nothing does, research is of no use.
    """
    names = frozenset(SubAgentTools.definitions)
    shown = names if SubAgentTools.name in asked else SHOWN.get(role, frozenset()) | names.intersection(asked)
    idle = names - shown
    return idle, frozenset[str]() if can_research else idle & {"research"}
