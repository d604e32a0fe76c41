"""The interface between a run of a workflow and the runner of its nodes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from swe_ai_fleet.domain.approval import ApprovalDecision
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.workflow import JsonValue, Node

Asked = Callable[[], Awaitable[None]]
_ITEM = re.compile(r"\[\d+\]")
_MAX_NAME_CHARS = 190


def memory_name(workflow: str, node_id: str) -> str:
    """The name of the memory of a node's agent: its own, the same for all items of a map.

    Args:
        workflow: The name of the whole workflow.
        node_id: The node's place in a run, such as `fix`, `files[3]` or `outer/inner`.
    """
    name = f"{workflow}.{_ITEM.sub('', node_id)}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 17]}-{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """What a node gave: JSON, and what it took.

    With an `error` it is a try that failed, but cost something; `again` says whether another one could do better.
    """

    output: JsonValue = None
    error: str = ""
    again: bool = True
    execution_id: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeApproval:
    """What a person is asked by an approval node. The prompt may hold what models wrote: untrusted text.

    `node_id` is unique in the run; asked again after a resumption, it is the same. `timeout_seconds` 0: no limit.
    """

    node_id: str
    prompt: str
    description: str = ""
    timeout_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDecision:
    """What the person said."""

    decision: ApprovalDecision
    text: str = ""
    approver: str = ""


class NodeRunner(Protocol):
    """Carries out the nodes of a run."""

    async def run(
        self, node: Node, inputs: Mapping[str, JsonValue], *, node_id: str, attempt: int, earlier: str
    ) -> NodeOutcome:
        """Carry out an agent or a tool node.

        Args:
            node: As it is defined, its references not resolved.
            inputs: What they are resolved to: `{"query": ...}` of an agent, the arguments of a tool.
            node_id: Its place in the run, such as `fix`, `files[3]` or `outer/inner`.
            attempt: Which try this is, from 1.
            earlier: The execution that a try before began and did not end, to be joined; empty: there is none.

        Raises:
            FleetError: It failed. InvalidRequest and NotFound are not tried again, Fenced ends the run at once.
        """
        ...

    async def decide(self, approval: NodeApproval, asked: Asked) -> NodeDecision:
        """Ask a person, for as long as it takes; `asked` is awaited once they can decide, before they have.

        Raises FleetError where nobody can be asked.
        """
        ...

    def execution_of(self, node: Node, *, node_id: str, attempt: int) -> str:
        """The id of the execution that `run` will begin for this try; empty where it begins none.

        It is in the log before the work begins, so that a resumed run can join it.
        """
        ...
