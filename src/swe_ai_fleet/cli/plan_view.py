"""Plan sessions on a screen; every text of theirs is untrusted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleet.planning.v1 import planning_pb2 as pb
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.watching.text import one_line

_GOAL = 80


def show_proposal(screen: Screen, proposal: pb.ExecutePlanResponse | pb.ApproveApproachResponse) -> None:
    """What is proposed, and what it rests on."""
    screen.line(f"plan {proposal.session_id}: {one_line(proposal.goal, _GOAL)}", style="bold")
    _show_memory(screen, proposal.memory_results)
    screen.block("approach", proposal.approach)
    screen.block("why", proposal.reasoning)


def show_result(screen: Screen, result: pb.ContinuePlanResponse, _: Any) -> None:
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


def show_session(screen: Screen, answer: pb.GetPlanSessionResponse, request: Any) -> None:
    """A session as it stands."""
    session = answer.session
    screen.line(f"plan {session.session_id}: {one_line(session.goal, _GOAL)}", style="bold")
    screen.line(f"status {session.status}{', being worked on' if session.working else ''}")
    _show_memory(screen, session.memory_results)
    screen.block("approach", session.approach)
    screen.block("why", session.reasoning)
    _show_calls(screen, session.tool_calls_made)
    screen.block("results", session.results)
    screen.block("error", session.error)
    if session.status == "awaiting_approval":
        screen.note(f"answer with: {how_to_decide(request.session_id)}")


def show_decision(screen: Screen, answer: pb.ApproveApproachResponse, request: Any) -> None:
    """What came of a decision: another approach, or a word, and what to type next."""
    if answer.status == "awaiting_approval":
        show_proposal(screen, answer)
        screen.note(f"answer with: {how_to_decide(request.session_id)}")
    elif answer.status == "error":
        raise nothing_proposed(answer)
    else:
        screen.line(one_line(answer.message))
        if answer.status == "approved":
            screen.note(f"carry it out with: fleet plan continue {request.session_id}")


def decided(answer: pb.ExecutePlanResponse | pb.ApproveApproachResponse, _: Any) -> Exit:
    """The exit code that tells what was proposed or decided."""
    return Exit.NOT_ACCEPTED if answer.status == "error" else Exit.ACCEPTED


def nothing_proposed(answer: pb.ExecutePlanResponse | pb.ApproveApproachResponse) -> CommandFault:
    """The fault of a session that came to no approach."""
    return CommandFault(
        f"nothing was proposed: {answer.error}",
        exit_code=Exit.NOT_ACCEPTED,
        hint=f"set the goal again with --session {answer.session_id}",
    )


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
