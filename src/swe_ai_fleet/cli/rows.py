"""The commands with a single request, about executions, councils and the fleet: one row each, by their words.

Also `fleet show`, which reads an execution's events, and `fleet drain`, which repeats its request until work has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import SUBMIT_SECONDS, UPLOAD_SECONDS, FleetClient
from swe_ai_fleet.cli.command import Given, TableRow, table
from swe_ai_fleet.cli.fleet_views import seconds, show_metrics, show_status, since_ms
from swe_ai_fleet.cli.messages import document, enum_word, listed_document, local_time
from swe_ai_fleet.cli.options import ROLES, As, Execution, Profiles, argument, option
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.client_settings import ClientSettings
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.watching.text import one_line

_FLEET = "fleet.orchestrator.v1.OrchestratorService"
_ROLE = argument(f"{ROLES}.")
_AGENT = argument("The agent's id.", metavar="AGENT")


def succeeded(field: str) -> Callable[[Any, Any], Exit]:
    """The `ends` of a row whose reply says whether it succeeded; if not, the fault is of this field."""

    def ends(answer: Any, _: Any) -> Exit:
        if not answer.success:
            raise CommandFault(answer.message, field=field)
        return Exit.ACCEPTED

    return ends


EXECUTION_COLUMNS: Mapping[str, str | Callable[[Any], str]] = {
    "execution": "execution_id",
    "task": "task_id",
    "kind": "kind",
    "status": "status",
    "verdict": "verdict",
    "role": lambda council: enum_word(pb.Role, council.role).upper(),
    "started": lambda execution: local_time(execution.created_at_ms),
    "what": lambda execution: one_line(execution.task_description, 60),
}


async def require_adjustment_text(_: ClientSettings, request: pb.ResolveApprovalRequest, given: Given) -> None:
    """Require a text for an adjustment. Raises CommandFault."""
    if request.decision == pb.APPROVAL_DECISION_ADJUSTED and not given["text"].strip():
        raise CommandFault("it is empty", field="text", hint="say what is to be done otherwise")


async def set_peer_review(_: ClientSettings, request: pb.CreateCouncilRequest, given: Given) -> None:
    request.config.enable_peer_review = given["rounds"] != 0


async def show(screen: Screen, client: FleetClient, name: Execution) -> Exit:
    execution = await client.execution(await client.find(name))
    # Imported here: an unknown name is reported at once.
    from swe_ai_fleet.cli.outcome import current_state, show_outcome

    await show_outcome(screen, client, await current_state(client, execution))
    # The command succeeded; the document has the execution's own exit code.
    return Exit.ACCEPTED


def show_councils(screen: Screen, answer: pb.ListCouncilsResponse, _: Any) -> None:
    if not answer.councils:
        screen.note("no councils; agents are made for each task")
        return
    councils = [
        (council.council_id, council.role, str(council.num_agents), council.status, council.model)
        for council in answer.councils
    ]
    screen.table(("council", "role", "agents", "status", "model"), councils)
    members = [_member(council, agent) for council in answer.councils for agent in council.agents]
    if members:
        screen.table(("agent", "role", "run by", "profile", "tasks", "languages"), members)


def _member(council: pb.CouncilInfo, agent: pb.AgentInfo) -> tuple[str, ...]:
    capabilities = agent.capabilities
    limit = f" of {capabilities.max_concurrent_tasks}" if agent.endpoint else ""
    return (
        agent.agent_id,
        council.role,
        agent.endpoint or "the fleet",
        capabilities.model_profile,
        f"{agent.running_tasks}{limit}",
        ", ".join(capabilities.languages),
    )


def _resolving_row(decision: str, field: str = "comment") -> TableRow:
    return TableRow(
        rpc=f"{_FLEET}.ResolveApproval",
        takes={
            "execution": Execution,
            "approval": option("The approval, if several are pending.", "approval_id", metavar="APPROVAL"),
            "text": option("A text for the agent.", field),
            "approver": As,
        },
        fixed={"decision": decision},
        before=require_adjustment_text,
        json="execution_id status pending_approvals",
        line=lambda reply: (
            f"execution {reply['execution_id']}: {decision}; {reply['status']}"
            + (f"; {reply['pending_approvals']} more to answer" if reply["pending_approvals"] else "")
        ),
    )


def show_erased(screen: Screen, answer: pb.EraseResponse, request: Any) -> None:
    executions = counted(len(answer.execution_ids), "execution")
    done = "would be erased" if request.dry_run else f"erased; the tombstone is {answer.record_id}"
    screen.line(f"{executions} and their results: {done}")
    stores = [(store.store, str(store.items), f"{store.bytes:,}") for store in answer.stores]
    if stores:
        screen.table(("store", "items", "bytes"), stores)


def _erasing_row(**settings: Any) -> TableRow:
    return TableRow(
        rpc=f"{_FLEET}.Erase",
        takes={
            **settings,
            "reason": option("Why, for the tombstone. Do not quote erased data.", metavar="TEXT"),
            "dry_run": option("Only show what would be erased."),
            "cancel": option("Cancel running executions."),
        },
        view=show_erased,
        seconds=UPLOAD_SECONDS,
    )


ROWS: Mapping[str, TableRow] = {
    "erase execution": _erasing_row(execution=Execution),
    "erase caller": _erasing_row(caller=argument("The caller's name.", metavar="NAME")),
    "erase tenant": _erasing_row(tenant=argument("The name of your tenant.", metavar="NAME")),
    "erase memory": _erasing_row(
        memory_ids=argument("Memories with these ids.", "memories.memory_ids", metavar="[ID]...", default=()),
        namespace=option(
            "All memories of a namespace; may be repeated.", "memories.namespaces", words="--namespace -n"
        ),
    ),
    "status": TableRow(
        rpc=f"{_FLEET}.GetStatus",
        fixed={"include_stats": True, "include_fleet": True},
        ends=lambda reply, _: Exit.NOT_ACCEPTED if reply.status == "unhealthy" else Exit.ACCEPTED,
        view=show_status,
        seconds=20.0,
    ),
    "metrics": TableRow(
        rpc=f"{_FLEET}.GetMetrics",
        takes={
            "since": option(
                "Time span until now: 90s, 30m, 1h, 7d, 2w. Empty: the whole log.",
                "start_time_ms",
                metavar="SPAN",
                kind=str,
                default="1h",
                turn=since_ms,
            ),
            "role": option("Only executions of this role. Default: all."),
        },
        view=show_metrics,
    ),
    "deliver": TableRow(
        rpc=f"{_FLEET}.DeliverCandidate",
        takes={
            "execution": Execution,
            "candidate": argument("The candidate's name in `fleet show`.", "candidate_id", metavar="CANDIDATE"),
            "branch": option("The branch to create. Default: fleet/<task id>-<candidate>."),
            "push": option("Push it to the repository's origin."),
            "reason": option("Why, for the log.", metavar="TEXT"),
            "approver": As,
        },
        json="execution_id candidate_id branch commit=commit_sha",
        line="{candidate_id} is on branch {branch} as {commit_sha}",
        seconds=SUBMIT_SECONDS,
    ),
    "list": TableRow(
        rpc=f"{_FLEET}.ListExecutions",
        takes={
            "task_id": option("Only executions of this task."),
            "status": option("Only executions with this status; may be repeated.", "statuses"),
            "limit": option("Most executions, the newest first.", "page_size", max=500, min=1, default=50),
        },
        json=lambda answer: {"executions": [listed_document(execution) for execution in answer.executions]},
        view=table("executions", EXECUTION_COLUMNS, "no executions"),
    ),
    "cancel": TableRow(
        rpc=f"{_FLEET}.CancelExecution",
        takes={
            "execution": Execution,
            "reason": option("Why, for the log.", default="cancelled from the command line"),
        },
        json="execution_id status already_ended",
        line=lambda end: (
            f"execution {end['execution_id']}{' had ended before' if end['already_ended'] else ''}: {end['status']}"
        ),
    ),
    "approve": _resolving_row("approved"),
    "reject": _resolving_row("rejected"),
    "adjust": _resolving_row("adjusted", "adjustment"),
    "councils list": TableRow(
        rpc=f"{_FLEET}.ListCouncils",
        takes={"role": option("Only the council of this role. Default: all.", "role_filter")},
        fixed={"include_agents": True},
        view=show_councils,
    ),
    "councils create": TableRow(
        rpc=f"{_FLEET}.CreateCouncil",
        takes={
            "role": _ROLE,
            "agents": option("Number of the fleet's own agents. Default: 3.", "num_agents", min=0),
            "rounds": option(
                "Rounds of peer review. Default: 1.", "config.deliberation_rounds", min=0, kind=int | None
            ),
            "profile": Profiles,
            "kind": option(
                "tools (own agents only), or external. Default: either.",
                "config.agent_type",
                words="--type",
                metavar="TYPE",
            ),
            "param": option(
                "temperature=0.2, or instructions=… for every agent.", "config.custom_params", metavar="K=V"
            ),
        },
        before=set_peer_review,
        json="council_id agent_ids",
        line=lambda end: (
            f"{end['council_id']} is created: {', '.join(end['agent_ids']) or 'no agents yet; register them'}"
        ),
    ),
    "councils delete": TableRow(
        rpc=f"{_FLEET}.DeleteCouncil",
        takes={"role": _ROLE},
        ends=succeeded("role"),
        json="message agents_removed",
        line="{message}",
    ),
    "councils register": TableRow(
        rpc=f"{_FLEET}.RegisterAgent",
        takes={
            "role": _ROLE,
            "agent_id": _AGENT,
            "endpoint": option("Address of an agent that you run. Default: the fleet runs it.", metavar="HOST:PORT"),
            "profile": option(
                "A model profile of the server. Default: its model.", "capabilities.model_profile", metavar="NAME"
            ),
            "max_tasks": option("Tasks at the same time. Default: 1.", "capabilities.max_concurrent_tasks", min=0),
            "language": option("A programming language that it knows.", "capabilities.languages"),
            "metadata": option("Further information about it.", metavar="K=V"),
        },
        json="council_id message",
        line="{council_id}: {message}",
    ),
    "councils unregister": TableRow(
        rpc=f"{_FLEET}.UnregisterAgent",
        takes={"role": _ROLE, "agent_id": _AGENT},
        ends=succeeded("agent_id"),
        json="message",
        line="{message}",
    ),
}


_AGAIN_SECONDS = 2.0
_CALL_SECONDS = 20.0
Target = Annotated[str, argument("orchestrator, host or node.", metavar="TARGET")]
Name = Annotated[str, argument("The target's name in `fleet status`.", metavar="NAME")]
Undo = Annotated[bool, option("Put it back to work.")]
Within = Annotated[str, option("Move the remaining work after this time: 90s, 30m, 1h. Default: wait.", metavar="SPAN")]


async def drain(
    screen: Screen, client: FleetClient, target: Target, name: Name, *, undo: Undo = False, within: Within = ""
) -> Exit:
    kind = f"DRAIN_TARGET_{target.upper()}"
    if kind not in pb.DrainTarget.keys():  # noqa: SIM118 - it is no dictionary
        raise CommandFault("no such target", field="target", hint="orchestrator, host or node")
    within_seconds = seconds(within, "within") if within else 0
    request = pb.DrainRequest(target=kind, name=name, undo=undo, within_seconds=within_seconds)
    waits_shown: list[str] = []
    while True:
        answer = await client.calls.unary("Drain", request, pb.DrainResponse, seconds=_CALL_SECONDS)
        if undo or not answer.waits_for:
            break
        if waits_shown != (waits_shown := list(answer.waits_for)):
            screen.note(f"{answer.name} waits for {', '.join(waits_shown)}")
        # The short name may match another one after this one is gone; the reply has the full name.
        request.name = answer.name
        await asyncio.sleep(_AGAIN_SECONDS)
    state = "works again" if undo else "is drained, and can be ended"
    screen.result(document(answer), f"{target} {answer.name} {state}")
    return Exit.ACCEPTED
