"""Workflows: nodes, the edges between them, and the JSON types of their values. Events tell what a run of one did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

JsonValue = Any
"""What JSON can hold."""


def json_type(value: object) -> str:
    """The name of a value's type: `null`, `boolean`, `integer`, `number`, `string`, `array`, `object`.

    Anything that JSON does not have is `other`.
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
    person decides. `branch`: one of several ways is taken. `map`: a node for each item of a list. `workflow`: another
    workflow as a whole.
    """

    AGENT = "agent"
    TOOL = "tool"
    APPROVAL = "approval"
    BRANCH = "branch"
    MAP = "map"
    WORKFLOW = "workflow"


class AgentMode(StrEnum):
    """How an agent node works: it answers (nothing is changed), or candidates are made and judged, or one delivered."""

    ANSWER = "answer"
    DELIBERATE = "deliberate"
    ORCHESTRATE = "orchestrate"


class NodeStatus(StrEnum):
    """Where a node of a run stands. `waiting` is for a person's approval, `paused` at a breakpoint."""

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
    """How the agent of a node is made.

    `model` is a model's name (or, in a fleet, a model profile), empty: the default. `tools` are the names offered where
    `use_tools` is on (none named: those of its role). With `use_memory` what is remembered is recalled for it and its
    answer remembered. `agents`, `rounds` and `checks` (command lines) are of the modes that make candidates.
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
        # Lists and plain words are what users write.
        object.__setattr__(self, "mode", AgentMode(self.mode))
        object.__setattr__(self, "tools", tuple(self.tools))
        object.__setattr__(self, "checks", tuple(self.checks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Whether what a reference names `is` something: see `workflows.conditions` for the comparisons."""

    ref: str = ""
    op: str = "eq"
    value: JsonValue = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchCase:
    """The first case whose condition holds names the edges that are followed; one without a condition always holds."""

    label: str
    when: Condition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One step. What it is given may hold references: `${inputs.NAME}`, `${nodes.ID.output.FIELD}`, `${item}`.

    Attributes:
        id: Unique in its workflow.
        type: What it does; decides which of the others count.
        agent_config: Of an agent.
        query: What an agent is asked or told to do; empty: the input `query` of the run, and what the nodes before it
            gave (of the node of a map: its item).
        tool, arguments: The call of a tool node.
        prompt: What the person is asked by an approval node.
        cases: Of a branch.
        over, node, max_parallel: Of a map: a reference to the list, the node that is run for each `${item}`, and how
            many at a time (0: as many as there are).
        workflow, inputs: Of a sub-workflow: its name or itself, and what it is given.
        retries: How often it is tried again after a failure, `retry_seconds` later, doubled each time.
        timeout_seconds: Of one try; 0: none.
        on_error: `fail` ends the run, `continue` goes on with an output of `{"error": ...}`.
        breakpoint: Whether the run pauses before it.
        line: Where it stands in the file it came from; 0: in none.
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
    """`target` may begin once `source` has ended; with a `label` only where the branch `source` chose that."""

    source: str
    target: str
    label: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowInput:
    """What a run is given. `type` is a JSON schema type: string, number, integer, boolean, array or object."""

    name: str
    type: str = "string"
    description: str = ""
    required: bool = True
    default: JsonValue = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """Nodes, and the edges that say what comes after what. `outputs` are, by name, references into the nodes."""

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
    """A run of a workflow as it is handed in. `inputs` are exact JSON; sub-workflows by name are resolved already."""

    workflow: Workflow
    inputs: str = "{}"
