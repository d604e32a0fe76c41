"""Runs of workflows from the command line: handed in, watched, shown, steered."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from rich.table import Table

from fleet.orchestrator.v1 import orchestrator_pb2 as orchestrator
from fleet.workflow.v1 import workflow_pb2 as pb
from swe_ai_fleet.cli.calls import caller_name
from swe_ai_fleet.cli.client import SUBMIT_SECONDS, Fleet, FleetClient
from swe_ai_fleet.cli.exits import CommandFault, Exit, exit_of, fault_of
from swe_ai_fleet.cli.interrupts import interrupts
from swe_ai_fleet.cli.live import Progress, follow, view
from swe_ai_fleet.cli.messages import enum_name, enum_word
from swe_ai_fleet.cli.node_tables import gist, node_row, nodes_table
from swe_ai_fleet.cli.order import made_up_id, repo_ref
from swe_ai_fleet.cli.pairs import pairs
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.workflow_files import file_text, is_file
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.task import UncommittedChanges, check_identifier
from swe_ai_fleet.watching.text import one_line

_SHOWN_CHARS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowOrder:
    """A run as the command line gives it."""

    workflow: str
    given: tuple[str, ...] = ()
    inputs: Path | None = None
    repo: str = ""
    ref: str = ""
    uncommitted: UncommittedChanges = UncommittedChanges.REFUSE
    task_id: str = ""
    approve: str = ""
    profile: str = ""
    network: tuple[str, ...] = ()
    timeout_seconds: int = 0
    memory: bool = False
    detach: bool = False
    name: str = field(default_factory=lambda: secrets.token_hex(3))

    async def request(self, client: FleetClient) -> pb.RunWorkflowRequest:
        """The request; types of inputs are asked of the fleet. Raises CommandFault naming the option that is wrong."""
        request = pb.RunWorkflowRequest(
            approval=enum_name(orchestrator.ApprovalPolicy, self.approve, field="approve"),
            model_profile=self.profile,
            constraints=orchestrator.TaskConstraints(
                timeout_seconds=self.timeout_seconds,
                network=orchestrator.NetworkPolicy(allowed_hosts=self.network) if self.network else None,
            ),
        )
        if is_file(self.workflow):
            request.definition = file_text(Path(self.workflow))
            checked = await client.workflow(
                "ValidateWorkflow",
                pb.ValidateWorkflowRequest(definition=request.definition),
                pb.ValidateWorkflowResponse,
            )
            if checked.faults:
                raise CommandFault(_faults(self.workflow, checked), exit_code=Exit.USAGE)
            summary = checked.summary
        else:
            request.name = self.workflow
            found = await client.workflow(
                "GetWorkflow", pb.GetWorkflowRequest(name=self.workflow), pb.GetWorkflowResponse
            )
            summary = found.summary
        request.inputs_json = json.dumps(self._inputs({one.name: one.type for one in summary.inputs}))
        if self.repo:
            request.repo.CopyFrom(repo_ref(self.repo, ref=self.ref, uncommitted=self.uncommitted))
        if self.memory:
            request.memory.CopyFrom(orchestrator.MemoryOptions(read=True, write=True))
        try:
            wanted = self.task_id or made_up_id(summary.name, self.name, otherwise="workflow")
            request.task_id = check_identifier(wanted, field="task_id")
        except FleetError as error:
            raise fault_of(error) from None
        return request

    def _inputs(self, types: Mapping[str, str]) -> dict[str, object]:
        found: dict[str, object] = {}
        if self.inputs is not None:
            try:
                read: object = json.loads(self.inputs.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise CommandFault(f"--inputs {self.inputs}: {str(error)[:200]}", exit_code=Exit.USAGE) from None
            if not isinstance(read, dict):
                raise CommandFault(f"--inputs {self.inputs} holds no JSON object", exit_code=Exit.USAGE)
            found = cast("dict[str, object]", read)
        for name, text in pairs(self.given, "--input").items():
            found[name] = text if types.get(name, "string") == "string" else _value(name, text, types[name])
        return found


async def run(screen: Screen, fleet: Fleet, order: WorkflowOrder) -> Exit:
    """Run a workflow to its end on a fleet. Ctrl-C cancels the run; a second one leaves at once."""
    with interrupts() as signals:
        async with fleet as client:
            request = await order.request(client)
            accepted = await client.workflow("RunWorkflow", request, pb.RunWorkflowResponse, seconds=SUBMIT_SECONDS)
            existed = " (the same run was handed in before)" if accepted.already_existed else ""
            screen.note(f"task {accepted.task_id}: execution {accepted.execution_id}{existed}")
            if order.detach:
                return _handed_in(screen, accepted)
            progress = NodeProgress()
            with view(screen, progress) as show_event:
                following = await signals.race(follow(client, accepted.execution_id, progress, show_event))
                if not following.done():
                    screen.note("cancelling the run; Ctrl-C again leaves without waiting", style="yellow")
                    try:
                        await client.cancel(accepted.execution_id, "Ctrl-C")
                        await following
                    finally:
                        following.cancel()
                following.result()
            return await _shown(screen, client, accepted.execution_id)


async def show(screen: Screen, client: FleetClient, name: str) -> Exit:
    """Print a run as it stands; the exit code tells how it ended, 0 while it goes on."""
    return await _shown(screen, client, await client.find(name), as_it_stands=True)


async def steer(screen: Screen, client: FleetClient, name: str, action: str, *, node: str = "", by: str = "") -> Exit:
    """Pause, step or continue a run."""
    request = pb.SteerWorkflowRequest(
        action=enum_name(pb.SteerAction, action, field="action"), node_id=node, by=by or caller_name()
    )
    request.execution_id = await client.find(name)
    answer = await client.workflow("SteerWorkflow", request, pb.SteerWorkflowResponse)
    paused = f"; paused then: {', '.join(answer.paused)}" if answer.paused else ""
    screen.result(
        {"execution_id": request.execution_id, "action": action, "paused": list(answer.paused)},
        f"{request.execution_id}: {action}{paused}",
    )
    return Exit.ACCEPTED


class NodeProgress(Progress):
    """What a watcher of a run has seen so far, node by node."""

    def table(self) -> Table:
        nodes = self.state.nodes.values() if self.state is not None else ()
        return nodes_table(node_row(one) for one in nodes)


async def _shown(screen: Screen, client: FleetClient, execution_id: str, *, as_it_stands: bool = False) -> Exit:
    run = (await client.workflow("GetRun", pb.GetRunRequest(execution_id=execution_id), pb.GetRunResponse)).run
    outputs = run.outputs_json
    if run.HasField("output_artifact"):
        outputs = (await client.artifact(execution_id, run.output_artifact.digest)).decode("utf-8", "replace")
    status = ExecutionStatus(enum_word(orchestrator.DeliberationStatus, run.status))
    ended = exit_of(status) if status.terminal or not as_it_stands else Exit.ACCEPTED
    if screen.json:
        screen.document(_document(run, outputs))
        return ended
    screen.line(f"workflow {run.workflow}, task {run.task_id}", style="bold")
    screen.line(f"execution {run.execution_id}")
    rows = [
        (
            one.node_id,
            enum_word(pb.NodeStatus, one.status),
            str(one.attempt),
            f"{one.duration_ms / 1000:.1f}" if one.duration_ms else "",
            f"{one.usage.prompt_tokens + one.usage.completion_tokens:,}" if one.usage.prompt_tokens else "",
            one.error_message or gist(one.output_json or one.inputs_json),
        )
        for one in run.nodes
    ]
    screen.out.print(nodes_table(rows))
    for one in run.nodes:
        if one.status == pb.NODE_STATUS_PAUSED:
            screen.line(f"{one.node_id} is paused; it would be given {one.inputs_json}")
    for name, value in _fields(outputs).items():
        screen.line(f"{name}:", style="bold")
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
        screen.line(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]} ... (--json has all)")
    told = str(status) + (f": {one_line(run.error_message, 1000)}" if run.error_message else "")
    tokens = run.usage.prompt_tokens + run.usage.completion_tokens
    cost = f" ({run.duration_ms / 1000:.1f} s, {tokens:,} tokens)" if status.terminal else ""
    screen.line(told + cost, style="bold green" if status is ExecutionStatus.COMPLETED else "bold yellow")
    return ended


def _document(run: pb.WorkflowRun, outputs: str) -> dict[str, object]:
    return {
        "execution_id": run.execution_id,
        "task_id": run.task_id,
        "workflow": run.workflow,
        "status": enum_word(orchestrator.DeliberationStatus, run.status),
        "inputs": _fields(run.inputs_json),
        "outputs": _fields(outputs),
        "nodes": [
            {
                "node_id": one.node_id,
                "status": enum_word(pb.NodeStatus, one.status),
                "attempt": one.attempt,
                "failures": one.failures,
                "inputs": json.loads(one.inputs_json) if one.inputs_json else None,
                "output": json.loads(one.output_json) if one.output_json else None,
                "error": one.error_message,
                "execution_id": one.execution_id,
                "label": one.label,
                "duration_ms": one.duration_ms,
            }
            for one in run.nodes
        ],
        "error": run.error_message,
        "tokens": run.usage.prompt_tokens + run.usage.completion_tokens,
        "duration_ms": run.duration_ms,
    }


def _handed_in(screen: Screen, accepted: pb.RunWorkflowResponse) -> Exit:
    screen.result({"execution_id": accepted.execution_id, "task_id": accepted.task_id}, accepted.execution_id)
    return Exit.ACCEPTED


def _faults(file: str, checked: pb.ValidateWorkflowResponse) -> str:
    first = checked.faults[0]
    more = f" (and {len(checked.faults) - 1} more; see `fleet workflow validate`)" if len(checked.faults) > 1 else ""
    where = f": {first.node}" if first.node else ""
    return f"{file}:{first.line}{where}: {first.message}{more}"


def _value(name: str, text: str, kind: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise CommandFault(
            f"--input {name}: {text[:80]!r} is no {kind}", exit_code=Exit.USAGE, hint="give it as JSON"
        ) from None


def _fields(text: str) -> dict[str, object]:
    found: object = json.loads(text) if text else {}
    return cast("dict[str, object]", found) if isinstance(found, dict) else {"output": found}
