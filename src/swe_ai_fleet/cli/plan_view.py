"""Plan sessions on a screen; every text of theirs is untrusted."""

from __future__ import annotations

from collections.abc import Iterable

from fleet.planning.v1 import planning_pb2 as pb
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.watching.text import one_line, visible

_LINES = 60
_GOAL = 80


def show_proposal(screen: Screen, proposal: pb.ExecutePlanResponse | pb.ApproveApproachResponse) -> None:
    """What is proposed, and what it rests on."""
    screen.line(f"plan {proposal.session_id}: {one_line(proposal.goal, _GOAL)}", style="bold")
    _show_memory(screen, proposal.memory_results)
    _block(screen, "approach", proposal.approach)
    _block(screen, "why", proposal.reasoning)


def show_result(screen: Screen, result: pb.ContinuePlanResponse) -> None:
    """What came of an approved plan."""
    screen.line(f"plan {result.session_id}: {result.status} after {result.iterations} iterations", style="bold")
    _show_calls(screen, result.tool_calls_made)
    _block(screen, "results", result.results)
    _block(screen, "error", result.error)
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
    _block(screen, "approach", session.approach)
    _block(screen, "why", session.reasoning)
    _show_calls(screen, session.tool_calls_made)
    _block(screen, "results", session.results)
    _block(screen, "error", session.error)


def show_card(screen: Screen, session: pb.PlanSession) -> None:
    """A session in one line."""
    screen.line(f"{session.session_id}  {session.status}  {one_line(session.goal, _GOAL)}")


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
        _block(screen, "researched", research.summary or research.error)
        for source in research.sources:
            screen.line(f"  source: {one_line(source)}", style="dim")


def _show_calls(screen: Screen, calls: Iterable[pb.ToolCallMade]) -> None:
    for call in calls:
        screen.line(f"  {call.step}. {one_line(call.tool, _GOAL)}: {call.outcome}")


def _block(screen: Screen, title: str, text: str) -> None:
    if not text.strip():
        return
    lines = visible(text).splitlines()
    screen.line(f"  {title}:")
    for line in lines[:_LINES]:
        screen.line(f"    {line}")
    if len(lines) > _LINES:
        screen.line(f"    ... {len(lines) - _LINES} more lines; --json has them all", style="dim")
