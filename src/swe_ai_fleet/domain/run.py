"""The state of one agent run, folded from its events: its progress, and all that another process needs to resume it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime

from swe_ai_fleet.domain.approval import ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.event import (
    ApprovalRequested,
    ApprovalResolved,
    CallRepaired,
    Event,
    ExecutionStatus,
    HistoryCondensed,
    MessageAdded,
    ModelAwaited,
    ModelReplied,
    PlanMade,
    RunClaimed,
    RunFinished,
    RunStarted,
    StoredEvent,
    ToolFinished,
    ToolStarted,
    WorkspaceCheckpointed,
)
from swe_ai_fleet.domain.json_values import is_mapping
from swe_ai_fleet.domain.message import AssistantMessage, Message, ToolCall, ToolMessage
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import Observation, Plan, Step, StopReason, Trajectory

INTERRUPTED = (
    "interrupted: the process that ran this call ended before the call did. It may or may not have had its effect; "
    "look before you repeat it."
)
SUB_AGENT = "sub_agent"
"""The metadata key of a result under which a sub-agent reports its work and usage."""
_ERROR = "Error: "
APPROVAL_TOOL = "approval"
"""The tool name of a person's decision in the audit chain of the agent that asked; it is no tool call of the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """An agent run after some of its events.

    Attributes:
        generation: That of the last claim; 0 before the first.
        started: How it started; None where it has not.
        messages: The conversation as sent to the model. Only calls of the last reply may lack an answer.
        steps: The turns so far; the last one may lack observations. A first step with the number 0 is a reply that the
            run started with: its calls had waited for a person.
        usage: The usage so far; its duration is the time that hosts worked, without waiting for people.
        entries: The audit chain.
        dangling: By call id, the entries of calls in the last reply that started and never ended.
        plan: The last plan made.
        checkpoint: The last checkpoint of the workspace.
        lost: The entries of operations with side effects that started after that checkpoint.
        requests: By id, the requests for approval.
        resolutions: By id, the decisions on them.
        finished: How it ended; None while it can continue.
    """

    agent_id: str
    generation: int = 0
    started: RunStarted | None = None
    messages: tuple[Message, ...] = ()
    steps: tuple[Step, ...] = ()
    usage: Usage = field(default_factory=Usage)
    entries: tuple[AuditEntry, ...] = ()
    dangling: Mapping[str, AuditEntry] = field(default_factory=dict[str, AuditEntry])
    plan: Plan | None = None
    checkpoint: WorkspaceCheckpointed | None = None
    lost: tuple[AuditEntry, ...] = ()
    requests: Mapping[str, ApprovalRequest] = field(default_factory=dict[str, ApprovalRequest])
    resolutions: Mapping[str, ApprovalResolution] = field(default_factory=dict[str, ApprovalResolution])
    finished: RunFinished | None = None

    @property
    def trajectory(self) -> Trajectory | None:
        """The whole run, once it has ended; None if it can be resumed, as a cancelled run can."""
        ended = self.finished
        if ended is None or ended.stop_reason is StopReason.CANCELLED:
            return None
        return Trajectory(
            steps=self.steps, stop_reason=ended.stop_reason, answer=ended.answer, usage=ended.usage, error=ended.error
        )

    def observed(self, call_id: str) -> bool:
        """Whether a call has a result."""
        return any(observation.call_id == call_id for step in self.steps for observation in step.observations)


def fold_run(events: Iterable[Event], agent_id: str) -> RunState:
    """The state of one run after an execution's events, in their order; events of other agents are skipped."""
    run = _RunFold(agent_id)
    for event in events:
        run.add(event)
    return run.state()


class _RunFold:
    """The mutable state of `fold_run`."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.generation = 0
        self.finished: RunFinished | None = None
        self.requests: dict[str, ApprovalRequest] = {}
        self.resolutions: dict[str, ApprovalResolution] = {}
        self._begin(None)

    def _begin(self, started: RunStarted | None) -> None:
        """Start the run again, with an empty conversation or that of `started`."""
        self.started = started
        self.messages: list[Message] = list(started.messages) if started else []
        self.steps: list[Step] = []
        self.usage = Usage()
        self.entries: list[AuditEntry] = []
        self.plan: Plan | None = None
        self.checkpoint: WorkspaceCheckpointed | None = None
        self.changes: list[AuditEntry] = []
        self._worked_ms = 0
        self._since = self._until = ""
        self._last_reply()
        if (waiting := _unanswered(self.messages)) is not None:
            # An earlier run made these calls, a person has decided, and this run answers them.
            self.steps.append(Step(number=0, reply=waiting, observations=(), usage=Usage()))
            self._last_reply(waiting)

    def _last_reply(self, reply: AssistantMessage | None = None) -> None:
        self._calls: dict[str, ToolCall] = {call.call_id: call for call in reply.tool_calls} if reply else {}
        self._answers: dict[str, ToolMessage] = {}
        self._observed: dict[str, Observation] = {}
        self._repairs: dict[str, tuple[str, ...]] = {}
        self._unfinished: dict[str, AuditEntry] = {}
        self._answered: set[str] = set()

    def add(self, event: Event) -> None:
        body = event.body
        match body:
            case ApprovalRequested(request=request) if request.agent_id == self.agent_id:
                self.requests[request.approval_id] = request
            case ApprovalResolved(resolution=resolution):
                self.resolutions.setdefault(resolution.approval_id, resolution)
            case _:
                pass
        if event.agent_id != self.agent_id:
            return
        if isinstance(body, RunClaimed):
            self._claimed(body, event.at)
        self._until = event.at
        self._since = self._since or event.at
        match body:
            case RunStarted():
                worked, since, until = self._worked_ms, self._since, self._until
                self._begin(body)
                self._worked_ms, self._since, self._until = worked, since, until
            case ModelReplied(step=number, reply=reply):
                self._close()
                self.finished = None
                self.usage += reply.usage
                self.messages.append(reply.message)
                self.steps.append(Step(number=number, reply=reply.message, observations=(), usage=reply.usage))
                self._last_reply(reply.message)
            case ToolStarted(entry=entry):
                self.entries.append(entry)
                self.changes.append(entry)
                if entry.call_id in self._calls:
                    self._unfinished[entry.call_id] = entry
            case ToolFinished(entry=entry, result=result):
                self.entries.append(entry)
                self._observe(entry.call_id, result, result.observation())
            case MessageAdded(message=ToolMessage(call_id=call_id, content=content)):
                result = self._observed[call_id].result if call_id in self._observed else None
                self._observe(call_id, result or self._result_of_text(call_id, content), content)
            case MessageAdded(message=message):
                self._close()
                self.messages.append(message)
            case CallRepaired(call_id=call_id, repairs=repairs) if call_id in self._calls:
                self._repairs[call_id] = repairs
            case HistoryCondensed(messages=messages):
                self._close()
                self.messages = list(messages)
            case PlanMade(plan=plan):
                self.plan = plan
            case WorkspaceCheckpointed():
                self.checkpoint = body
                self.changes.clear()
            case ApprovalRequested(usage=usage) if usage != Usage():
                # The run's own count includes its sub-agents.
                self.usage, self._worked_ms, self._since = usage, usage.duration_ms, event.at
            case RunFinished():
                self.finished = body
            case _:
                pass

    def _claimed(self, body: RunClaimed, at: str) -> None:
        self.generation = body.generation
        self._worked_ms += self._span()
        self._since = self._until = at
        if not body.resumes:
            self.requests, self.resolutions, self.finished = {}, {}, None
            self._begin(None)
            self._since = self._until = at
        else:
            self._answer()

    def _observe(self, call_id: str, result: ToolResult, content: str) -> None:
        if call_id not in self._calls:
            return
        if call_id not in self._observed:
            self.usage += Usage(tool_calls=1) + sub_agent_usage(result)
        self._observed[call_id] = Observation(call_id=call_id, result=result)
        if call_id not in self._answered:
            self._answers[call_id] = ToolMessage(call_id=call_id, content=content)
        self._unfinished.pop(call_id, None)
        if result.outcome is Outcome.INTERRUPTED:
            # Written by the process that resumed the run, before it ran the calls that had not started.
            self._answer()

    def _result_of_text(self, call_id: str, content: str) -> ToolResult:
        """The result of a call whose only record is the text of its observation."""
        call = self._calls.get(call_id)
        name = call.name if call else ""
        if content.startswith(_ERROR):
            error = content.removeprefix(_ERROR)
            return ToolResult(success=False, operation=name, error=error, outcome=Outcome.ERROR)
        return ToolResult(success=True, operation=name, content=content)

    def _answer(self) -> None:
        """Put the answers to the last reply's calls into the conversation, in the order of the calls."""
        for call_id in self._calls:
            if call_id in self._answers:
                self.messages.append(self._answers.pop(call_id))
                self._answered.add(call_id)

    def _close(self) -> None:
        """End the last reply: each of its calls gets exactly one answer."""
        if not self._calls:
            return
        self._answer()
        for call_id, call in self._calls.items():
            if call_id not in self._answered:
                result = interrupted(call.name)
                self.messages.append(ToolMessage(call_id=call_id, content=result.observation()))
                self._observed[call_id] = Observation(call_id=call_id, result=result)
        self.steps[-1] = self._step()
        self._last_reply()

    def _step(self) -> Step:
        observations = tuple(
            replace(self._observed[call_id], repairs=self._repairs.get(call_id, ()))
            for call_id in self._calls
            if call_id in self._observed
        )
        return replace(self.steps[-1], observations=observations)

    def _span(self) -> int:
        if not self._since:
            return 0
        span = datetime.fromisoformat(self._until) - datetime.fromisoformat(self._since)
        return max(0, round(span.total_seconds() * 1000))

    def state(self) -> RunState:
        self._answer()
        if self.steps and self._calls:
            self.steps[-1] = self._step()
        return RunState(
            agent_id=self.agent_id,
            generation=self.generation,
            started=self.started,
            messages=tuple(self.messages),
            steps=tuple(self.steps),
            usage=replace(self.usage, duration_ms=self._worked_ms + self._span()),
            entries=tuple(self.entries),
            dangling=dict(self._unfinished),
            plan=self.plan,
            checkpoint=self.checkpoint,
            lost=tuple(self.changes),
            requests=dict(self.requests),
            resolutions={name: resolution for name, resolution in self.resolutions.items() if name in self.requests},
            finished=self.finished,
        )


def _unanswered(messages: Sequence[Message]) -> AssistantMessage | None:
    """The last message where it is a reply with calls, which have no answer yet."""
    last = messages[-1] if messages else None
    return last if isinstance(last, AssistantMessage) and last.tool_calls else None


def interrupted(operation: str) -> ToolResult:
    """The result of a call whose process ended before the call did."""
    return ToolResult(success=False, operation=operation, error=INTERRUPTED, outcome=Outcome.INTERRUPTED)


def sub_agent_usage(result: ToolResult) -> Usage:
    """The usage of a sub-agent, where the result is that of one."""
    sub_agent = result.metadata.get(SUB_AGENT)
    usage = sub_agent.get("usage") if is_mapping(sub_agent) else None
    if not is_mapping(usage):
        return Usage()
    names = {field.name for field in fields(Usage)} - {"duration_ms"}
    spent = {name: value for name, value in usage.items() if name in names and isinstance(value, int | float)}
    return Usage(**spent)  # pyrefly: ignore[bad-argument-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgress:
    """The progress of one agent run. `status` is running, awaiting_approval, finished or lost.

    `generation` is that of its last claim; `attempt` is 1 plus the number of its processes that were lost.
    `model_awaited_since` (ISO 8601, UTC) is set while it waits for a model server.
    """

    agent_id: str
    status: str = "running"
    step: int = 0
    last_tool: str = ""
    last_outcome: str = ""
    usage: Usage = field(default_factory=Usage)
    stop_reason: str = ""
    audit_head: str = ""
    model: str = ""
    generation: int = 0
    attempt: int = 1
    model_awaited_since: str = ""


def tool_calls(log: Iterable[StoredEvent]) -> Iterator[AuditEntry]:
    """The finished tool calls of agents in these events; decisions of people are not among them."""
    for stored in log:
        body = stored.event.body
        if isinstance(body, ToolFinished) and body.entry.tool != APPROVAL_TOOL:
            yield body.entry


def advance_agent(agent: AgentProgress, stored: StoredEvent) -> AgentProgress:
    match stored.event.body:
        case RunClaimed(generation=generation, resumes=resumes):
            if not resumes:
                agent = AgentProgress(agent_id=agent.agent_id, model=agent.model, attempt=agent.attempt)
            return replace(agent, generation=generation, status="running", stop_reason="", model_awaited_since="")
        case ModelAwaited(waited_ms=waited):
            return replace(agent, model_awaited_since="" if waited else stored.event.at)
        case RunStarted(model=model):
            return AgentProgress(
                agent_id=agent.agent_id,
                model=model,
                generation=agent.generation,
                attempt=agent.attempt,
            )
        case ModelReplied(step=step, reply=reply):
            return replace(agent, step=step, usage=agent.usage + reply.usage)
        case ToolStarted(entry=entry):
            return replace(agent, last_tool=entry.name, last_outcome=Outcome.STARTED)
        case ToolFinished(entry=entry) if entry.tool == APPROVAL_TOOL:
            return replace(agent, audit_head=entry.hash)
        case ToolFinished(entry=entry):
            return replace(
                agent,
                last_tool=entry.name,
                last_outcome=entry.outcome,
                audit_head=entry.hash,
                usage=agent.usage + Usage(tool_calls=1),
            )
        case RunFinished(stop_reason=stop_reason, usage=usage, audit_head=audit_head):
            spent = usage if usage.model_calls else agent.usage
            return replace(
                agent,
                status="finished",
                stop_reason=stop_reason,
                usage=spent,
                audit_head=audit_head or agent.audit_head,
                model_awaited_since="",
            )
        case _:
            return agent


def agent_ended(agent: AgentProgress, status: ExecutionStatus) -> AgentProgress:
    """The run after its execution has ended; a run that waited for a person has ended with it.

    So has a request without a run of its own (of a workflow's node).
    """
    if agent.status == "running" and not agent.generation:
        return replace(agent, status="finished")
    if agent.status != "awaiting_approval":
        return agent
    reason = StopReason.CANCELLED if status is ExecutionStatus.CANCELLED else StopReason.LOST
    return replace(agent, status="finished", stop_reason=reason)
