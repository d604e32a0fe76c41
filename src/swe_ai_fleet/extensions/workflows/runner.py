"""The interface between the engine and a runner of nodes: values, updates and the outcomes of nodes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NotRequired, Protocol, TypedDict

from swe_ai_fleet.domain.approval import ApprovalDecision
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import ExecutionStatus, NodeUpdated
from swe_ai_fleet.domain.json_values import parse_json, parsed
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.workflow import JsonValue, Node, Workflow, json_type
from swe_ai_fleet.watching.progress import Level, ended_state, node_state, status_word

Asked = Callable[[], Awaitable[None]]
_ITEM = re.compile(r"\[\d+\]")
_MAX_NAME_CHARS = 190


def memory_name(workflow: str, node_id: str) -> str:
    """The name of the memory of a node's agent: its own, the same for all items of a map.

    Args:
        workflow: The name of the whole workflow.
        node_id: The node's id in the run, such as `fix`, `files[3]` or `outer/inner`.
    """
    name = f"{workflow}.{_ITEM.sub('', node_id)}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 17]}-{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """A node's output, as JSON, and its usage.

    With an `error` it is a failed attempt that had a cost; `again` says whether a retry could succeed.
    """

    output: JsonValue = None
    error: str = ""
    again: bool = True
    execution_id: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeApproval:
    """The request of an approval node to a person. The prompt may hold text of models: untrusted.

    `node_id` is unique in the run, and the same after a resumption. `timeout_seconds` 0: no limit.
    """

    node_id: str
    prompt: str
    description: str = ""
    timeout_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDecision:
    """The person's decision."""

    decision: ApprovalDecision
    text: str = ""
    approver: str = ""


class NodeRunner(Protocol):
    """Runs the nodes of a workflow."""

    async def run(
        self, node: Node, inputs: Mapping[str, JsonValue], *, node_id: str, attempt: int, earlier: str
    ) -> NodeOutcome:
        """Run an agent or a tool node.

        Args:
            node: The node as defined, its references not resolved.
            inputs: The resolved values: `{"query": ...}` of an agent, the arguments of a tool.
            node_id: Its id in the run, such as `fix`, `files[3]` or `outer/inner`.
            attempt: The number of this attempt, from 1.
            earlier: The execution that an earlier attempt began and did not end, to be joined; empty: none.

        Raises:
            FleetError: It failed. InvalidRequest and NotFound are not retried, Fenced ends the run at once.
        """
        ...

    async def decide(self, approval: NodeApproval, asked: Asked) -> NodeDecision:
        """Ask a person, without a time limit; `asked` is awaited as soon as the request is open.

        Raises FleetError where nobody can be asked.
        """
        ...

    def execution_of(self, node: Node, *, node_id: str, attempt: int) -> str:
        """The id of the execution that `run` will begin for this attempt; empty where it begins none.

        It is in the log before the work begins, so that a resumed run can join it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionState:
    """The current or final state of a run. `status` is in_progress, completed, failed, rejected or cancelled.

    `outputs` are those that the workflow names, or, where it names none, those of its last nodes by id. `nodes` are
    the last update of each node by its place in the run; `error` names the node that failed.
    """

    status: ExecutionStatus
    outputs: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    nodes: Mapping[str, NodeUpdated] = field(default_factory=dict[str, NodeUpdated])
    error: str = ""
    usage: Usage = field(default_factory=Usage)


class Log(TypedDict):
    """One log line of a node; `agent_id` is the node's."""

    level: Level
    message: str
    agent_id: str


class Update(TypedDict):
    """One message, as on the gateway's WebSocket; its type decides which of the last fields are present.

    `sequence` increases, `at_ms` is the time since the Unix epoch. The `result` of the last message has, beside the
    gateway's fields, `outputs`: the same as `output`.
    """

    type: Literal["status", "node_update", "log", "completion", "error"]
    execution_id: str
    sequence: int
    at_ms: int
    status: NotRequired[str]
    data: NotRequired[Mapping[str, JsonValue]]
    node_id: NotRequired[str]
    node_state: NotRequired[Mapping[str, JsonValue]]
    log: NotRequired[Log]
    result: NotRequired[Mapping[str, JsonValue]]
    error: NotRequired[str]


def started_update(workflow: str) -> Mapping[str, object]:
    """The first message: the run has begun."""
    data = {"step": "running", "percent": 0, "message": f"workflow {workflow} started", "workflow": workflow}
    return {"type": "status", "status": status_word(ExecutionStatus.IN_PROGRESS), "data": data}


def node_update(update: NodeUpdated) -> Mapping[str, object]:
    """The state of a node."""
    return {"type": "node_update", "node_id": update.node_id, "node_state": node_state(update)}


def log_update(level: Level, message: str, node_id: str) -> Mapping[str, object]:
    """A log line of a node."""
    return {"type": "log", "log": Log(level=level, message=message, agent_id=node_id)}


def end_update(state: ExecutionState, *, duration_ms: int) -> Mapping[str, object]:
    """The last message: `completion`, or `error`; both have the result."""
    ended = ended_state(
        state.status, error=state.error, usage=state.usage, duration_ms=duration_ms, output=dict(state.outputs)
    )
    result = {**ended, "outputs": dict(state.outputs)}
    if state.status is ExecutionStatus.COMPLETED:
        return {"type": "completion", "result": result}
    error = state.error or f"ended: {state.status.value}"
    return {"type": "error", "error": error, "status": state.status.value, "result": result}


MAX_VALUE_CHARS = 4_000_000
MAX_SHOWN_CHARS = 200_000
INPUT_TYPES = ("string", "number", "integer", "boolean", "array", "object")


def exact_json(value: JsonValue, what: str) -> str:
    """A value as JSON text. Raises InvalidRequest saying that `what` is not JSON, or too long."""
    try:
        text = parsed(json.dumps, value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{what} is not valid JSON: {error!s:.200}", field=what) from error
    if len(text) > MAX_VALUE_CHARS:
        raise InvalidRequest(
            f"{what} has {len(text)} characters as JSON, at most {MAX_VALUE_CHARS} are kept", field=what
        )
    return well_formed(text)


def shown_json(value: JsonValue) -> str:
    """Inputs as shown to people; long ones are left out, because the log would repeat them many times."""
    text = exact_json(value, "inputs")
    return text if len(text) <= MAX_SHOWN_CHARS else json.dumps({"left_out": f"{len(text)} characters of JSON"})


def parsed_json(text: str, what: str) -> JsonValue:
    """The value of a text from `exact_json`. Raises InvalidRequest for any other text."""
    try:
        return parse_json(text)
    except ValueError as error:
        raise InvalidRequest(f"{what} is not valid JSON: {error!s:.200}", field=what) from error


def fits(value: JsonValue, kind: str) -> bool:
    """Whether a value is of a JSON schema type; as in JSON schema, 2.0 is an integer too."""
    match kind:
        case "number":
            return json_type(value) in ("integer", "number")
        case "integer":
            return json_type(value) == "integer" or (isinstance(value, float) and value.is_integer())
        case _:
            return json_type(value) == kind


def checked_inputs(workflow: Workflow, given: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """The inputs of a run, with defaults filled in.

    Raises:
        InvalidRequest: One is missing, unknown or of another type; `field` is `inputs.NAME`.
    """
    declared = {spec.name: spec for spec in workflow.inputs}
    for name in given:
        if name not in declared:
            names = ", ".join(declared) or "none"
            raise InvalidRequest(f"there is no input {name!r:.80}", field=f"inputs.{name:.80}", hint=f"inputs: {names}")
    inputs: dict[str, JsonValue] = {}
    for name, spec in declared.items():
        value = given.get(name)
        if value is None:
            if spec.required and spec.default is None:
                raise InvalidRequest(f"the input {name!r} is missing", field=f"inputs.{name}", hint=spec.description)
            inputs[name] = spec.default
            continue
        if not fits(value, spec.type):
            raise InvalidRequest(
                f"the input {name!r} must be of type {spec.type}, not {json_type(value)}", field=f"inputs.{name}"
            )
        inputs[name] = value
    return parsed_json(exact_json(inputs, "inputs"), "inputs")
