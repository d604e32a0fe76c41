"""`fleet plan`: set a goal; at a terminal, decide about the proposed approach and have it run.

Every text of a plan session is untrusted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fleet.planning.v1 import planning_pb2 as pb
from swe_ai_fleet.cli.client import Calls, FleetClient
from swe_ai_fleet.cli.command import TableRow, table
from swe_ai_fleet.cli.messages import document
from swe_ai_fleet.cli.options import argument, option
from swe_ai_fleet.cli.order import fill, named_repository
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen, line_of_terminal, next_line
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.watching.text import one_line

_GOAL = 80
_PLANNING = "fleet.planning.v1.PlanningService"
_SESSION = argument("A plan session.", "session_id", metavar="ID")
WORK_SECONDS = 3600.0
"""More than the default limit of a request, so the server ends it first."""
LIMITS = {
    "max_iterations": option("Most replies of the model.", "limits.max_iterations", min=0, metavar="N"),
    "max_tool_calls": option("Most calls of tools.", "limits.max_tool_calls", min=0, metavar="N"),
    "timeout_seconds": option(
        "Longest it may take.", "limits.timeout_seconds", words="--timeout", min=0, metavar="SECONDS"
    ),
    "max_tokens": option(
        "Most tokens, prompt and completion. Default: no limit.", "limits.max_tokens", min=0, metavar="N"
    ),
}
"""The options that limit the model's work; left out: the server's default."""
WAITING = ("awaiting_approval", "awaiting_answer")
_QUESTION = "approve, reject, or say what is to be different; an empty line leaves it waiting"
_ANSWER = "answer, or reject; an empty line leaves it waiting"


def show_proposal(screen: Screen, proposal: pb.ExecutePlanResponse | pb.ApproveApproachResponse) -> None:
    """Show a proposal, and the memories that it is based on."""
    screen.line(f"plan {proposal.session_id}: {one_line(proposal.goal, _GOAL)}", style="bold")
    _show_memory(screen, proposal.memory_results)
    screen.block("question", proposal.question)
    screen.block("approach", proposal.approach)
    screen.block("why", proposal.reasoning)


def show_result(screen: Screen, result: pb.ContinuePlanResponse, _: Any) -> None:
    screen.line(
        f"plan {result.session_id}: {result.status} after {counted(result.iterations, 'iteration')}", style="bold"
    )
    _show_calls(screen, result.tool_calls_made)
    screen.block("results", result.results)
    screen.block("error", result.error)
    usage = result.usage
    screen.line(
        f"{counted(usage.model_calls, 'model call')}, {usage.prompt_tokens} + {usage.completion_tokens} tokens"
        + (f", cost {usage.cost_usd:.4f} USD" if usage.cost_usd else "")
    )
    screen.note(f"say how good it was: fleet rate {result.session_id} 1..5")


def show_session(screen: Screen, answer: pb.GetPlanSessionResponse, request: Any) -> None:
    session = answer.session
    screen.line(f"plan {session.session_id}: {one_line(session.goal, _GOAL)}", style="bold")
    screen.line(f"status {session.status}{', being worked on' if session.working else ''}")
    _show_memory(screen, session.memory_results)
    screen.block("question", session.question)
    screen.block("approach", session.approach)
    screen.block("why", session.reasoning)
    _show_calls(screen, session.tool_calls_made)
    screen.block("results", session.results)
    screen.block("rejected", session.rejection)
    screen.block("error", session.error)
    if session.status in WAITING:
        screen.note(f"answer with: {how_to_decide(request.session_id)}")


def show_decision(screen: Screen, answer: pb.ApproveApproachResponse, request: Any) -> None:
    """Show the answer to a decision: another proposal or a message, and the next command."""
    if answer.status in WAITING:
        show_proposal(screen, answer)
        screen.note(f"answer with: {how_to_decide(request.session_id)}")
    elif answer.status == "error":
        raise nothing_proposed(answer)
    else:
        screen.line(one_line(answer.message))
        if answer.status == "approved":
            screen.note(f"carry it out with: fleet plan continue {request.session_id}")


def decided(answer: pb.ExecutePlanResponse | pb.ApproveApproachResponse, _: Any) -> Exit:
    """The exit code for a proposal or a decision."""
    return Exit.NOT_ACCEPTED if answer.status == "error" else Exit.ACCEPTED


def nothing_proposed(answer: pb.ExecutePlanResponse | pb.ApproveApproachResponse) -> CommandFault:
    return CommandFault(
        f"nothing was proposed: {answer.error}",
        exit_code=Exit.NOT_ACCEPTED,
        hint=f"set the goal again with --session {answer.session_id}",
    )


def how_to_decide(session_id: str) -> str:
    """The commands that answer a pending proposal."""
    return f'fleet plan approve {session_id} | reject {session_id} | adjust {session_id} --text "..."'


def _show_memory(screen: Screen, memory: pb.MemoryResults) -> None:
    if memory.HasField("coverage"):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalOrder:
    """A goal as the command line gives it."""

    text: Annotated[str, argument("What is to be reached, in your own words.", "goal", metavar="GOAL")]
    entity: Annotated[
        tuple[str, ...],
        option("What it is about; what memory does not know of it is researched.", "selected_entities", metavar="NAME"),
    ] = ()
    session: Annotated[str, option("A session to go on in. Default: a new one.", "session_id", metavar="ID")] = ""
    repo: Annotated[str, option("A repository to look into.", "repository", metavar="PATH|URL")] = ""
    ref: Annotated[str, option("Branch, tag or commit of it. Default: what is checked out.", "ref")] = ""
    max_iterations: Annotated[int, LIMITS["max_iterations"]] = 0
    max_tool_calls: Annotated[int, LIMITS["max_tool_calls"]] = 0
    timeout_seconds: Annotated[int, LIMITS["timeout_seconds"]] = 0
    max_tokens: Annotated[int, LIMITS["max_tokens"]] = 0


async def goal(screen: Screen, client: FleetClient, order: GoalOrder) -> Exit:
    request = pb.ExecutePlanRequest()
    fill(request, replace(order, repo=named_repository(order.repo)))
    return await pursue(screen, client.calls, request)


async def pursue(
    screen: Screen, calls: Calls, request: pb.ExecutePlanRequest, read: Callable[[], str] | None = None
) -> Exit:
    """Have an approach proposed and, at a terminal, ask the person about it; `read` gives their next line."""
    proposal: pb.ExecutePlanResponse | pb.ApproveApproachResponse = await calls.unary(
        "ExecutePlan", request, pb.ExecutePlanResponse, seconds=WORK_SECONDS
    )
    if screen.json:
        screen.document(document(proposal))
        return decided(proposal, request)
    asks = read is not None or sys.stdin.isatty()
    while proposal.status in WAITING:
        show_proposal(screen, proposal)
        answer = ""
        if asks:
            screen.note(_ANSWER if proposal.question else _QUESTION)
            with suppress(EOFError):
                answer = (await next_line(read or line_of_terminal)).strip()
        match answer.lower():
            case "":
                screen.note(f"answer with: {how_to_decide(proposal.session_id)}")
                return Exit.ACCEPTED
            case "approve" | "approved" | "yes" | "y" if not proposal.question:
                await _decided(calls, proposal.session_id, "approved", proposal.proposal)
                to_continue = pb.ContinuePlanRequest(session_id=proposal.session_id)
                result = await calls.unary("ContinuePlan", to_continue, pb.ContinuePlanResponse, seconds=WORK_SECONDS)
                show_result(screen, result, to_continue)
                return Exit.ACCEPTED if result.status == "completed" else Exit.NOT_ACCEPTED
            case "reject" | "rejected" | "no" | "n" if not proposal.question or "reject" in answer.lower():
                ended = await _decided(calls, proposal.session_id, "rejected", proposal.proposal)
                screen.line(one_line(ended.message))
                return Exit.REJECTED
            case _:
                proposal = await _decided(calls, proposal.session_id, "adjusted", proposal.proposal, answer)
    raise nothing_proposed(proposal)


async def _decided(
    calls: Calls, session_id: str, decision: str, proposal: int, adjustment: str = ""
) -> pb.ApproveApproachResponse:
    """The answer to a decision: approved, rejected or adjusted."""
    request = pb.ApproveApproachRequest(
        session_id=session_id, decision=decision, adjustment=adjustment, proposal=proposal
    )
    return await calls.unary("ApproveApproach", request, pb.ApproveApproachResponse, seconds=WORK_SECONDS)


def _deciding(decision: str, **text: object) -> TableRow:
    return TableRow(
        rpc=f"{_PLANNING}.ApproveApproach",
        takes={"name": _SESSION, **text},
        fixed={"decision": decision},
        ends=decided,
        view=show_decision,
        seconds=WORK_SECONDS,
    )


ROWS: Mapping[str, TableRow] = {
    "plan approve": _deciding("approved"),
    "plan reject": _deciding(
        "rejected",
        text=option("Why.", "adjustment", words="--text"),
    ),
    "plan adjust": _deciding(
        "adjusted",
        text=option("What is to be different.", "adjustment", words="--text", default=...),
        **LIMITS,
    ),
    "plan continue": TableRow(
        rpc=f"{_PLANNING}.ContinuePlan",
        takes={"name": _SESSION, **LIMITS},
        ends=lambda result, _: Exit.ACCEPTED if result.status == "completed" else Exit.NOT_ACCEPTED,
        view=show_result,
        seconds=WORK_SECONDS,
    ),
    "plan show": TableRow(
        rpc=f"{_PLANNING}.GetPlanSession",
        takes={"name": _SESSION},
        json=lambda answer: document(answer.session),
        view=show_session,
    ),
    "plan list": TableRow(
        rpc=f"{_PLANNING}.ListPlanSessions",
        takes={"limit": option("How many.", "page_size", min=1, max=200, default=20)},
        json="sessions",
        view=table(
            "sessions",
            {"session": "session_id", "status": "status", "goal": lambda goal: one_line(goal.goal, 80)},
            "no plan sessions yet",
        ),
    ),
}
