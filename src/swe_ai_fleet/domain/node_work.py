"""What the nodes of a workflow have done for them on the fleet: a question answered, a tool called."""

from __future__ import annotations

from dataclasses import dataclass, field

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.task import PinnedRepository, Task
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.domain.workflow import AgentConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerAssignment:
    """A question for one agent, in a clone that is thrown away afterwards.

    `agent_id` names the run in the log; the limits are the task's. `background` is what is remembered: untrusted text.
    """

    execution_id: str
    agent_id: str
    task: Task
    repository: PinnedRepository
    query: str
    config: AgentConfig = field(default_factory=AgentConfig)
    background: str = ""
    generation: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an agent answered: untrusted text. `error` says why it is not one that can be built upon.

    `tools` are the names of what it called, in order.
    """

    text: str
    stop_reason: StopReason
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    audit_head: str = ""
    error: str = ""
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperateAssignment:
    """One call of a tool in a clone that is thrown away afterwards. `arguments` are exact JSON."""

    execution_id: str
    agent_id: str
    task: Task
    repository: PinnedRepository
    tool: str
    arguments: str = "{}"
    generation: int = 1
