"""From events to figures: what each event adds, and when.

An open run or execution is remembered until it is measured at its end; the number of distinct names is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import CheckReport
from swe_ai_fleet.domain.event import (
    EXECUTION_SUBJECT,
    ApprovalRequested,
    ChecksFinished,
    Event,
    ExecutionClaimed,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    LoopNoticed,
    ModelAwaited,
    ModelReplied,
    RunClaimed,
    RunFinished,
    RunLost,
    RunReassigned,
    RunStarted,
    StoredEvent,
    ToolFinished,
    WinnerDelivered,
)
from swe_ai_fleet.domain.run import APPROVAL_TOOL
from swe_ai_fleet.domain.task import TaskKind
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.figures import Figures, Gauges, Key, ModelFigures, ToolFigures

MAX_NAMES = 100
OTHER = "(other)"
_MAX_CHARACTERS = 128
Seconds = float
_OPERATIONS = {
    TaskKind.DELIBERATE: "deliberation",
    TaskKind.ORCHESTRATE: "orchestration",
    TaskKind.WORKFLOW: "workflow",
    TaskKind.JUDGE: "judgement",
    TaskKind.PLAN: "plan",
    TaskKind.CHAT: "chat",
}
_MOST_OPEN = 100_000
_MOST_ENDED = 20_000


@dataclass(slots=True)
class MetricNames:
    """Bounds the number of names: after the first `most`, all others share one."""

    most: int = MAX_NAMES
    known: dict[str, str] = field(default_factory=dict[str, str])

    def of(self, name: str) -> str:
        """The name to count under: printable and not too long."""
        if (known := self.known.get(name)) is not None:
            return known
        if len(self.known) >= self.most:
            return OTHER
        cleaned = "".join(character if character.isprintable() else "?" for character in name[:_MAX_CHARACTERS])
        self.known[name] = cleaned
        return cleaned


@dataclass(slots=True, kw_only=True)
class OpenRun:
    """An agent's run that has not ended. `since` is None while it waits for a person.

    `counted` is the usage of its replies and tool calls since it last started from the beginning.
    """

    since: Seconds | None
    worked: Seconds = 0.0
    model: str = ""
    counted: Usage = field(default_factory=Usage)

    def pause(self, at: Seconds) -> bool:
        """Stop its clock; False where it was stopped already."""
        if self.since is None:
            return False
        self.worked += max(0.0, at - self.since)
        self.since = None
        return True

    def resume(self, at: Seconds) -> bool:
        """Start its clock; False where it was running already."""
        if self.since is not None:
            return False
        self.since = at
        return True

    def untold(self, total: Usage) -> Usage:
        """The part of a run's total that its events did not have: its sub-agents' calls, and the cost."""
        counted = self.counted
        return Usage(
            prompt_tokens=max(0, total.prompt_tokens - counted.prompt_tokens),
            completion_tokens=max(0, total.completion_tokens - counted.completion_tokens),
            cached_tokens=max(0, total.cached_tokens - counted.cached_tokens),
            model_calls=max(0, total.model_calls - counted.model_calls),
            tool_calls=max(0, total.tool_calls - counted.tool_calls),
            cost=max(0.0, total.cost - counted.cost),
        )


@dataclass(slots=True, kw_only=True)
class OpenExecution:
    """An execution that has not ended. `runs` are its open runs by agent id; `claimed`: an orchestrator drives it.

    `usage` is its usage so far.
    """

    role: str
    kind: TaskKind
    started_at: Seconds
    claimed: bool = False
    runs: dict[str, OpenRun] = field(default_factory=dict[str, OpenRun])
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The figures that an event adds, the tenant and role, and the time in seconds since 1970."""

    at: float
    key: Key
    figures: Figures


@dataclass(slots=True, kw_only=True)
class MetricsFold:
    """Takes the events of all writers in the order of the log; an event adds nothing the second time.

    Its memory is bounded: it holds open executions with their runs, and the roles of the last executions that ended.
    """

    position: int = 0
    open: dict[str, OpenExecution] = field(default_factory=dict[str, OpenExecution])
    roles: dict[str, str] = field(default_factory=dict[str, str])
    models: MetricNames = field(default_factory=MetricNames)
    tools: MetricNames = field(default_factory=MetricNames)

    def take(self, stored: StoredEvent) -> Iterator[Counted]:
        """The figures that an event adds."""
        if stored.sequence <= self.position:
            return
        self.position = stored.sequence
        event = stored.event
        at = datetime.fromisoformat(event.at).timestamp()
        count = self._of_execution if event.agent_id == EXECUTION_SUBJECT else self._of_run
        if (figures := count(event, at)) is not None:
            if (execution := self.open.get(_key(event.tenant, event.execution_id))) is not None:
                execution.usage += figures.usage
            yield Counted(at=at, key=f"{event.tenant}/{self._role(event)}", figures=figures)

    def running(self, tenant: str, execution_id: str) -> Usage:
        """The usage of an open execution so far; zero for any other."""
        execution = self.open.get(_key(tenant, execution_id))
        return execution.usage if execution is not None else Usage()

    def _role(self, event: Event) -> str:
        key = _key(event.tenant, event.execution_id)
        execution = self.open.get(key)
        return execution.role if execution is not None else self.roles.get(key, "")

    def _of_execution(self, event: Event, at: float) -> Figures | None:
        key, body = _key(event.tenant, event.execution_id), event.body
        execution = self.open.get(key)
        match body:
            case ExecutionStarted(task=task) if execution is None and key not in self.roles:
                self.open[key] = OpenExecution(role=str(task.role), kind=task.kind, started_at=at)
                while len(self.open) > _MOST_OPEN:
                    del self.open[next(iter(self.open))]
                return Figures(accepted=1, change=Gauges(queued=1))
            case ExecutionClaimed() if execution is not None and not execution.claimed:
                execution.claimed = True
                return Figures(change=Gauges(driven=1, queued=-1)).add_duration(
                    "queue_wait", (at - execution.started_at) * 1000
                )
            case ExecutionClaimed(generation=generation) if generation > 1:
                return Figures(takeovers=1)
            case RunReassigned():
                return Figures(lost=1)
            case RunLost(lost_agent_id=agent_id) if execution is not None and agent_id in execution.runs:
                running = execution.runs.pop(agent_id).pause(at)
                return Figures(agents_failed=1, lost=1, change=Gauges(agents=-int(running)))
            case ChecksFinished(report=report) | WinnerDelivered(report=report):
                return _checked(report)
            case ExecutionFinished() if execution is not None:
                return self._ended(key, execution, body, at)
            case _:
                return None

    def _ended(self, key: str, execution: OpenExecution, body: ExecutionFinished, at: float) -> Figures:
        del self.open[key]
        self.roles[key] = execution.role
        while len(self.roles) > _MOST_ENDED:
            del self.roles[next(iter(self.roles))]
        runs_left = len(execution.runs)
        cancelled = body.status is ExecutionStatus.CANCELLED
        running = sum(run.pause(at) for run in execution.runs.values())
        change = Gauges(agents=-running, driven=-int(execution.claimed), queued=-int(not execution.claimed))
        figures = Figures(
            ended=Counter({body.status: 1}),
            agents_cancelled=runs_left if cancelled else 0,
            agents_failed=0 if cancelled else runs_left,
            change=change,
        )
        return figures.add_duration(_OPERATIONS[execution.kind], body.duration_ms)

    def _of_run(self, event: Event, at: float) -> Figures | None:
        execution, body = self.open.get(_key(event.tenant, event.execution_id)), event.body
        run = execution.runs.get(event.agent_id) if execution is not None else None
        match body:
            case RunClaimed(resumes=resumes) if execution is not None:
                return _claimed(execution, event.agent_id, at, resumes=resumes)
            case RunStarted(model=model):
                if run is not None:
                    run.model = model
                return None
            case ApprovalRequested():
                return Figures(change=Gauges(agents=-1)) if run is not None and run.pause(at) else None
            case ModelReplied():
                return self._replied(run, body)
            case ModelAwaited(waited_ms=waited) if waited:
                return Figures().add_duration("model_wait", waited)
            case ToolFinished(entry=entry):
                return self._called(run, entry, cached=body.result.cached)
            case LoopNoticed(advice=advice):
                return Figures(loops=Counter({advice: 1}))
            case RunFinished() if execution is not None and run is not None:
                del execution.runs[event.agent_id]
                return self._run_ended(run, body, at, in_words=execution.kind is TaskKind.CHAT)
            case _:
                return None

    def _replied(self, run: OpenRun | None, body: ModelReplied) -> Figures:
        usage = replace(body.reply.usage, model_calls=max(1, body.reply.usage.model_calls), duration_ms=0)
        if run is not None:
            run.counted += usage
        name = self.models.of(body.reply.model or (run.model if run is not None else ""))
        model = ModelFigures(calls=usage.model_calls, usage=usage)
        model.latency.add(body.duration_ms)
        return Figures(usage=usage, models={name: model}).add_duration("model_call", body.duration_ms)

    def _called(self, run: OpenRun | None, entry: AuditEntry, *, cached: bool) -> Figures | None:
        if entry.tool == APPROVAL_TOOL:
            return None
        usage, failed = Usage(tool_calls=1), int(entry.outcome is not Outcome.SUCCESS)
        if run is not None:
            run.counted += usage
        tool = ToolFigures(calls=1, failures=failed, cached=int(cached), outcomes=Counter({entry.outcome: 1}))
        tool.latency.add(entry.duration_ms)
        tools = {self.tools.of(entry.name): tool}
        return Figures(usage=usage, tool_failures=failed, tools=tools).add_duration("tool_call", entry.duration_ms)

    def _run_ended(self, run: OpenRun, body: RunFinished, at: float, *, in_words: bool) -> Figures:
        """The figures of a run that ended; `in_words`: its answer is a reply without calls."""
        running, untold = run.pause(at), run.untold(body.usage)
        stops = Counter({str(body.stop_reason): 1})
        figures = Figures(usage=untold, stops=stops, change=Gauges(agents=-int(running)))
        match body.stop_reason:
            case StopReason.FINAL_ANSWER | StopReason.AWAITING_APPROVAL:
                figures.agents_succeeded = 1
            case StopReason.NO_TOOL_CALLS if in_words:
                figures.agents_succeeded = 1
            case StopReason.CANCELLED:
                figures.agents_cancelled = 1
            case _:
                figures.agents_failed = 1
        if run.model and (untold.cost or untold.total_tokens):
            # Without a latency, which is not known for single calls of sub-agents.
            figures.models[self.models.of(run.model)] = ModelFigures(calls=untold.model_calls, usage=untold)
        return figures.add_duration("agent", run.worked * 1000)


def _key(tenant: str, execution_id: str) -> str:
    return f"{tenant}/{execution_id}"


def _claimed(execution: OpenExecution, agent_id: str, at: float, *, resumes: bool) -> Figures | None:
    run = execution.runs.get(agent_id)
    if run is None:
        execution.runs[agent_id] = OpenRun(since=at)
        return Figures(agents_started=1, change=Gauges(agents=1))
    if not resumes:
        run.counted = Usage()
    return Figures(change=Gauges(agents=1)) if run.resume(at) else None


def _checked(report: CheckReport) -> Figures | None:
    """The durations of checks, and the usage of their models, which have no run of their own."""
    figures = Figures(usage=replace(report.usage, duration_ms=0))
    for result in report.results:
        if not result.skipped_reason:
            figures.add_duration("check", result.duration_ms)
    return figures if figures.latencies else None
