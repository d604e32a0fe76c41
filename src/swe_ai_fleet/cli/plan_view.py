"""Plan sessions on a screen; every text of theirs is untrusted."""

from __future__ import annotations

from collections.abc import Iterable

from fleet.planning.v1 import planning_pb2 as pb
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.watching.text import one_line

_GOAL = 80


def show_proposal(screen: Screen, proposal: pb.ExecutePlanResponse | pb.ApproveApproachResponse) -> None:
    """What is proposed, and what it rests on."""
    screen.line(f"plan {proposal.session_id}: {one_line(proposal.goal, _GOAL)}", style="bold")
    _show_memory(screen, proposal.memory_results)
    screen.block("approach", proposal.approach)
    screen.block("why", proposal.reasoning)


def show_result(screen: Screen, result: pb.ContinuePlanResponse) -> None:
    """What came of an approved plan."""
    screen.line(f"plan {result.session_id}: {result.status} after {result.iterations} iterations", style="bold")
    _show_calls(screen, result.tool_calls_made)
    screen.block("results", result.results)
    screen.block("error", result.error)
    usage = result.usage
    screen.line(
        f"{usage.model_calls} model calls, {usage.prompt_tokens} + {usage.completion_tokens} tokens"
        + (f", cost {usage.cost:.4f}" if usage.cost else "")
    )
    screen.note(f"say how good it was: fleet rate {result.session_id} 1..5")


def show_session(screen: Screen, session: pb.PlanSession) -> None:
    """A session as it stands."""
    screen.line(f"plan {session.session_id}: {one_line(session.goal, _GOAL)}", style="bold")
    screen.line(f"status {session.status}{', being worked on' if session.working else ''}")
    _show_memory(screen, session.memory_results)
    screen.block("approach", session.approach)
    screen.block("why", session.reasoning)
    _show_calls(screen, session.tool_calls_made)
    screen.block("results", session.results)
    screen.block("error", session.error)


def card_row(session: pb.PlanSession) -> tuple[str, str, str]:
    """A session in a list."""
    return session.session_id, session.status, one_line(session.goal, _GOAL)


def how_to_decide(session_id: str) -> str:
    """The commands with which a waiting approach is answered."""
    return f'fleet plan approve {session_id} | reject {session_id} | adjust {session_id} --text "..."'


def _show_memory(screen: Screen, memory: pb.MemoryResults) -> None:
    screen.line(f"  memory covers {memory.coverage:.0f} % of what was selected")
    for gap in memory.gaps:
        screen.line(f"  not in memory: {one_line(gap)}")
    for source in memory.sources:
        screen.line(f"  source: {one_line(source)}", style="dim")
    if memory.HasField("research"):
        research = memory.research
        screen.block("researched", research.summary or research.error)
        for source in research.sources:
            screen.line(f"  source: {one_line(source)}", style="dim")


def _show_calls(screen: Screen, calls: Iterable[pb.ToolCallMade]) -> None:
    for call in calls:
        screen.line(f"  {call.step}. {one_line(call.tool, _GOAL)}: {call.outcome}")
