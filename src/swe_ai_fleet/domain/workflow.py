"""Workflows: nodes, the edges between them, and the JSON types of their values. The log has events of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

JsonValue = Any
"""A JSON value."""


def json_type(value: object) -> str:
    """The name of a value's JSON type: `null`, `boolean`, `integer`, `number`, `string`, `array`, `object`.

    Any other type is `other`.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list() | tuple():
            return "array"
        case Mapping():
            return "object"
        case _:
            return "other"


class NodeType(StrEnum):
    """What a node does.

    `agent`: a model works on a query, or a council of agents on a repository. `tool`: one call of a tool. `approval`: a
    person decides. `branch`: one of several cases is chosen. `map`: runs a node for each item of a list. `workflow`:
    runs another workflow.
    """

    AGENT = "agent"
    TOOL = "tool"
    APPROVAL = "approval"
    BRANCH = "branch"
    MAP = "map"
    WORKFLOW = "workflow"


class AgentMode(StrEnum):
    """How an agent node works: it answers a question, ranks candidates, or delivers the winner."""

    ANSWER = "answer"
    DELIBERATE = "deliberate"
    ORCHESTRATE = "orchestrate"


class NodeStatus(StrEnum):
    """The status of a node in a run. `waiting` is for a person's approval, `paused` at a breakpoint."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def ended(self) -> bool:
        return self in (NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The configuration of a node's agent.

    `model` is a model's name (or, in a fleet, a model profile), empty: the default. `tools` are the names offered where
    `use_tools` is on (none named: those of its role). With `use_memory` memories are recalled for it and its answer is
    remembered. `agents`, `rounds` and `checks` (command lines) apply to the modes with candidates.
    """

    model: str = ""
    tools: Sequence[str] = ()
    use_memory: bool = False
    use_tools: bool = False
    role: str = "DEV"
    mode: AgentMode = AgentMode.ANSWER
    system_prompt: str = ""
    agents: int = 1
    rounds: int = 0
    checks: Sequence[str] = ()
    max_iterations: int = 0

    def __post_init__(self) -> None:
        # Users pass lists and plain strings.
        object.__setattr__(self, "mode", AgentMode(self.mode))
        object.__setattr__(self, "tools", tuple(self.tools))
        object.__setattr__(self, "checks", tuple(self.checks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A comparison of the value of a reference with `value`; `workflows.conditions` has the operators."""

    ref: str = ""
    op: str = "eq"
    value: JsonValue = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchCase:
    """The first case whose condition holds decides which edges are followed; without a condition it always holds."""

    label: str
    when: Condition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One step. Its inputs may contain references: `${inputs.NAME}`, `${nodes.ID.output.FIELD}`, `${item}`.

    Attributes:
        id: Unique in its workflow.
        type: What it does; decides which other fields apply.
        agent_config: For an agent.
        query: The question or instruction for an agent; empty: the input `query` of the run, and the outputs of the
            nodes before it (in a map: its item).
        tool, arguments: The call of a tool node.
        prompt: The question of an approval node.
        cases: For a branch.
        over, node, max_parallel: For a map: a reference to the list, the node that runs for each `${item}`, and how
            many run at a time (0: all).
        workflow, inputs: For a sub-workflow: the workflow or its name, and its inputs.
        retries: How often it is tried again after a failure, `retry_seconds` later, doubled each time.
        timeout_seconds: The limit of one attempt; 0: none.
        on_error: `fail` ends the run, `continue` goes on with the output `{"error": ...}`.
        breakpoint: Whether the run pauses before it.
        line: Its line in the file that it came from; 0: there is none.
    """

    id: str
    type: NodeType
    agent_config: AgentConfig = field(default_factory=AgentConfig)
    query: str = ""
    tool: str = ""
    arguments: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    prompt: str = ""
    cases: tuple[BranchCase, ...] = ()
    over: str = ""
    node: Node | None = None
    max_parallel: int = 0
    workflow: str | Workflow = ""
    inputs: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    retries: int = 0
    retry_seconds: float = 1.0
    timeout_seconds: float = 0.0
    on_error: str = "fail"
    breakpoint: bool = False
    description: str = ""
    line: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", NodeType(self.type))
        object.__setattr__(self, "cases", tuple(self.cases))


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """`target` may start once `source` has ended; with a `label` only where the branch `source` chose that case."""

    source: str
    target: str
    label: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowInput:
    """An input of a run. `type` is a JSON schema type: string, number, integer, boolean, array or object."""

    name: str
    type: str = "string"
    description: str = ""
    required: bool = True
    default: JsonValue = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """Nodes, and the edges that order them. `outputs` are, by name, references into the nodes."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    inputs: tuple[WorkflowInput, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict[str, str])
    description: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        object.__setattr__(self, "edges", tuple(self.edges))
        object.__setattr__(self, "inputs", tuple(self.inputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTask:
    """A run of a workflow as it is submitted. `inputs` are exact JSON; names of sub-workflows are already resolved."""

    workflow: Workflow
    inputs: str = "{}"
