"""What a session's agent is told at the beginning."""

from __future__ import annotations

from swe_ai_fleet.agents.plan_session.session import PlanSession, Research
from swe_ai_fleet.agents.sub_agents.results import described


def briefing(session: PlanSession) -> list[tuple[str, str]]:
    """Titled sections: the goal, what was selected, and as data what is known and what was found out."""
    research = session.research or Research()
    found = [research.summary, *(f"- {fact}" for fact in research.data_points)]
    found += [f"Source: {source}" for source in research.sources]
    if research.error:
        found.append(f"The research failed: {research.error}")
    return [
        ("Goal", session.goal),
        ("Selected entities", "\n".join(f"- {name}" for name in session.selected_entities)),
        ("What the project's memory says (data)", described(session.memory)),
        ("What was researched about the gaps (data)", "\n".join(filter(None, found))),
    ]
