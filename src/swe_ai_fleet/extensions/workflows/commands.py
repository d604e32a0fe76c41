"""`fleet workflow`: check, draw, run and show workflows; the options of a run and the request built from them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from fleet.orchestrator.v1 import orchestrator_pb2 as orchestrator
from fleet.workflow.v1 import workflow_pb2 as pb
from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.command import TableRow
from swe_ai_fleet.cli.messages import document, pairs
from swe_ai_fleet.cli.options import argument, option
from swe_ai_fleet.cli.order import IncludeDirty, fill, made_up_id, repo_ref
from swe_ai_fleet.cli.screen import CommandFault, Screen
from swe_ai_fleet.domain.json_values import is_object, parse_json
from swe_ai_fleet.domain.task import UncommittedChanges
from swe_ai_fleet.domain.text import check_identifier
from swe_ai_fleet.watching.text import one_line

_SERVICE = "fleet.workflow.v1.WorkflowService"
WorkflowName = Annotated[
    str,
    argument("A workflow of the fleet, or a file (*.yaml).", "name", "workflow", "definition", metavar="NAME|FILE"),
]


def is_file(text: str) -> bool:
    """Whether the text names a file rather than a workflow that a fleet knows."""
    # Here and below: other commands need no reader of workflows.
    from swe_ai_fleet.extensions.workflows.reading import SUFFIXES

    return text.endswith(SUFFIXES) or "/" in text


def file_text(path: Path) -> str:
    """A workflow file's text; a file too large for the reader is cut past its limit. Raises CommandFault."""
    from swe_ai_fleet.extensions.workflows.documents import MAX_BYTES

    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1).decode("utf-8", "replace")
    except OSError as error:
        raise CommandFault(f"{path} cannot be read: {error.strerror}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowOrder:
    """The arguments and options of `fleet workflow run`."""

    workflow: WorkflowName
    given: Annotated[
        tuple[str, ...], option("One input; may be repeated.", "inputs_json", "inputs", words="--input", metavar="K=V")
    ] = ()
    inputs: Annotated[Path | None, option("Inputs as a JSON object.", exists=True, dir_okay=False, metavar="FILE")] = (
        None
    )
    repo: Annotated[
        str, option("The repository to work on. Default: a new, empty one.", "repo", metavar="PATH|URL")
    ] = ""
    ref: options.Ref = ""
    uncommitted: IncludeDirty = UncommittedChanges.REFUSE
    task_id: Annotated[str, option("Makes the call repeatable: the same id is the same run.", "task_id")] = ""
    approve: options.Approve = ""
    profile: Annotated[str, option("A model profile of the server.", "model_profile", metavar="NAME")] = ""
    network: options.Network = ()
    timeout_seconds: Annotated[
        int,
        option(
            "Time limit of each agent. Default: 1800.",
            "constraints.timeout_seconds",
            words="--timeout",
            min=0,
            metavar="SECONDS",
        ),
    ] = 0
    memory: Annotated[bool, option("Give agents memories, and store outcomes.", "memory")] = False
    detach: Annotated[bool, option("Only submit it; `fleet watch` shows it.")] = False
    name: str = field(default_factory=lambda: secrets.token_hex(3))

    async def request(self, client: FleetClient) -> pb.RunWorkflowRequest:
        """The request; the fleet says the types of inputs. Raises CommandFault naming the wrong option."""
        request = pb.RunWorkflowRequest()
        # Inputs are converted below, by the types that the workflow declares.
        fill(request, replace(self, given=()))
        if is_file(self.workflow):
            request.ClearField("name")
            request.definition = file_text(Path(self.workflow))
            checked = await client.calls.unary(
                "ValidateWorkflow",
                pb.ValidateWorkflowRequest(definition=request.definition),
                pb.ValidateWorkflowResponse,
            )
            if checked.faults:
                raise CommandFault(_faults(self.workflow, checked))
            summary = checked.summary
        else:
            reply = await client.calls.unary(
                "GetWorkflow", pb.GetWorkflowRequest(name=self.workflow), pb.GetWorkflowResponse
            )
            summary = reply.summary
        request.inputs_json = json.dumps(self._inputs({declared.name: declared.type for declared in summary.inputs}))
        if self.repo:
            request.repo.CopyFrom(repo_ref(self.repo, ref=self.ref, uncommitted=self.uncommitted))
        if self.memory:
            request.memory.CopyFrom(orchestrator.MemoryOptions(read=True, write=True))
        wanted = self.task_id or made_up_id(summary.name, self.name, otherwise="workflow")
        request.task_id = check_identifier(wanted, field="task_id")
        return request

    def _inputs(self, types: Mapping[str, str]) -> dict[str, object]:
        inputs: dict[str, object] = {}
        if self.inputs is not None:
            try:
                read = parse_json(self.inputs.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise CommandFault(f"--inputs {self.inputs}: {str(error)[:200]}") from None
            if not is_object(read):
                raise CommandFault(f"--inputs {self.inputs} is not a JSON object")
            inputs |= read
        for name, text in pairs(self.given, "input").items():
            inputs[name] = text if types.get(name, "string") == "string" else _value(name, text, types[name])
        return inputs


def _faults(file: str, checked: pb.ValidateWorkflowResponse) -> str:
    first = checked.faults[0]
    more = f" (and {len(checked.faults) - 1} more; see `fleet workflow validate`)" if len(checked.faults) > 1 else ""
    where = f": {first.node}" if first.node else ""
    return f"{file}:{first.line}{where}: {first.message}{more}"


def _value(name: str, text: str, kind: str) -> object:
    try:
        return parse_json(text)
    except ValueError:
        raise CommandFault(f"--input {name}: {text[:80]!r} is not a {kind}", hint="write it as JSON") from None


def workflows_document(answer: Any) -> dict[str, object]:
    listing: dict[str, Any] = document(answer)
    for workflow in listing["workflows"]:
        for declared in workflow["inputs"]:
            text = declared.pop("default_json")
            declared["default"] = json.loads(text) if text else None
    return {"workflows": listing["workflows"], "broken": listing["broken"]}


def show_workflows(screen: Screen, answer: Any, _: Any) -> None:
    for workflow in answer.workflows:
        screen.line(f"{workflow.name}  {one_line(workflow.description, 200)}", style="bold")
        for declared in workflow.inputs:
            default = f" (default {one_line(declared.default_json, 60)})" if declared.default_json else ""
            needed = "" if declared.required else " optional" if not default else ""
            screen.line(f"    {declared.name}: {declared.type}{needed}{default}  {one_line(declared.description, 120)}")
    for fault in answer.broken:
        screen.note(fault, style="yellow")


ROWS: Mapping[str, TableRow] = {
    "workflow list": TableRow(
        rpc=f"{_SERVICE}.ListWorkflows",
        json=workflows_document,
        view=show_workflows,
    ),
    "workflow steer": TableRow(
        rpc=f"{_SERVICE}.SteerWorkflow",
        takes={
            "execution": options.Execution,
            "action": argument("pause, step or continue."),
            "node": option("For step: the node to release. Default: all paused ones.", "node_id"),
            "by": option(
                "The name of the person who steers, for the log. Default: you.",
                words="--as",
                metavar="NAME",
                turn=lambda name: name or options.caller_name(),
            ),
        },
        json="execution_id action paused",
        line=lambda reply: (
            f"{reply['execution_id']}: {reply['action']}"
            + (f"; paused then: {', '.join(reply['paused'])}" if reply["paused"] else "")
        ),
    ),
}
