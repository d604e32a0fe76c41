"""What every agent run does: it is claimed in the log, goes on from there, asks its model, and ends in one place.

`RunServices` claims runs and ends them, whatever they consist of. An `AgentSpec` says what one kind of agent is told,
what it can call and how its answer is read; `run_agent` does the rest. Agents that call nothing are put
`RecordedQuestions`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from swe_ai_fleet.agents.agent_run import AgentRun, Rules, RunParts, ends_with_step
from swe_ai_fleet.agents.budget import Budget, Clock
from swe_ai_fleet.agents.equipment import Equipment
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.loop_guard import LoopGuard
from swe_ai_fleet.agents.model_middleware import TokenRecordingModel
from swe_ai_fleet.agents.questions import Questions
from swe_ai_fleet.agents.recorded_run import (
    WorkspaceKeeper,
    concluded,
    read_run,
    recorded_run,
    resume,
    run_finished,
    writer_of,
)
from swe_ai_fleet.agents.results import ToolRecord
from swe_ai_fleet.agents.toolbox import Toolbox, first_line
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.assignment import Opening, RecordedAssignment
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Limits, Usage
from swe_ai_fleet.domain.candidate import Perspective
from swe_ai_fleet.domain.command import Owner
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import EventBody, HistoryCondensed, ModelAwaited, RunFinished, RunStarted
from swe_ai_fleet.domain.message import Message, ModelCapabilities, ModelReply, ModelRequest, Sampling, UserMessage
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.trajectory import StopReason, Trajectory
from swe_ai_fleet.ports import BlobStore, ChatModel, Clone, EventLog, Journal
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.policy import Policy

T = TypeVar("T")
SHORT_SECONDS = 600.0
OBSERVATION_CHARS = 16_000
ASKED_AGAIN = "asked again"  # A `HistoryCondensed`'s method: the question is put in other words.
PATCH_MEDIA_TYPE = "text/x-diff"
LOOKING_AROUND = Rules(max_reminders=0, max_tool_errors=6, answer_at_limit=True)
"""For an agent that looks around and answers: its first reply without a call is the answer."""
_NEW = RunState(agent_id="")
_ANY = Perspective()
_CHARS_PER_TOKEN = 4


def short_limits(limits: Limits) -> Limits:
    """What a run may spend that looks and says and changes nothing, given what an agent of its task may."""
    return replace(limits, timeout_seconds=min(SHORT_SECONDS, limits.timeout_seconds))


@dataclass(kw_only=True)
class RunContext:
    """One run under way: what it is made with, where it is written, and where it stood when this process took it.

    Attributes:
        equipment: Models, access, prices.
        trail: Its audit chain.
        journal: Where its events go; None: nowhere.
        store: Keeps what is too long for an event; None: nothing does.
        keeper: Keeps its workspace for another process; None: nothing does.
        earlier: What the log has of it.
        record: What this process did with its tools; None where an earlier one did something too.
        clock: For budgets made beside it that share one.
    """

    equipment: Equipment
    trail: AuditTrail
    journal: Journal | None = None
    store: Callable[[bytes], Awaitable[BlobRef]] | None = None
    keeper: WorkspaceKeeper | None = None
    earlier: RunState = _NEW
    record: ToolRecord | None = None
    clock: Clock = field(default_factory=Clock)

    async def model(self, task: Task, perspective: Perspective, budget: Budget) -> tuple[ChatModel, ModelCapabilities]:
        """The model, and what it can do; from here on the budget's clock runs, at its prices.

        Raises ModelError, InvalidRequest (there is no such model).
        """
        model = self.equipment.model(task, perspective, self.trail, self._waits(budget.clock))
        capabilities = await model.probe()
        budget.begin(self.equipment.price(capabilities.model))
        return model, capabilities

    def _waits(self, clock: Clock) -> Callable[[bool], None]:
        """Records that the run waits for a model server, for which its clock stands, and that it goes on."""

        def hear(is_away: bool) -> None:
            if is_away and clock.stop():
                self.post(ModelAwaited())
            elif not is_away and (stood := clock.go()):
                self.post(ModelAwaited(waited_ms=max(1, round(stood * 1000))))

        return hear

    def recording_tokens(self, model: ChatModel, perspective: Perspective) -> ChatModel:
        """The model, whose replies are recorded with their tokens if its profile says so and there is a store."""
        if self.store is None or perspective.model_profile not in self.equipment.token_profiles:
            return model
        return TokenRecordingModel(model=model, store=self.store)

    def post(self, body: EventBody) -> None:
        """Record an event, where there is somewhere to."""
        if self.journal is not None:
            self.journal.post(body)

    def begin(self, started: RunStarted) -> None:
        """Begin the conversation."""
        self.post(started)
        self.earlier = RunState(agent_id=self.trail.agent_id, started=started, messages=started.messages)

    async def end(self, finished: RunFinished) -> str:
        """Record how the run ended, and give back the room of what was kept for going on; when that was."""
        at = (await self.journal.append(finished)).at if self.journal is not None else now()
        if self.keeper is not None and finished.stop_reason is not StopReason.CANCELLED:
            await self.keeper.release()
        return at


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending(Generic[T]):
    """What a run hands in, and how it ended.

    With a `fault` nothing is handed in: it is raised, once the end stands in the log.
    """

    value: T
    stop_reason: StopReason
    usage: Usage
    error: str = ""
    fault: FleetError | None = None


@dataclass(frozen=True, kw_only=True)
class RunServices:
    """What runs of one process share.

    Attributes:
        equipment: Models, access, prices.
        log: Where runs are recorded.
        blobs: Has patches, takes what is too long for an event.
        audit_key: Keys the digests of full arguments.
        host: Names the process in the log.
    """

    equipment: Equipment
    log: EventLog
    blobs: BlobStore
    audit_key: bytes = b""
    host: str = ""

    async def run(
        self,
        assignment: RecordedAssignment[T],
        clone: Clone | None,
        work: Callable[[RunContext], Awaitable[Ending[T]]],
    ) -> T:
        """What the work of an assignment gives, recorded; what an earlier process had come to is handed in again.

        Raises Fenced, Unavailable, the fault that the work ended with; a cancellation passes after it was recorded.
        """
        async with self.claimed(assignment, clone) as run:
            if (known := concluded(run.earlier, assignment.gives)) is not None:
                return known
            ended = await work(run)
            await run.end(
                run_finished(
                    run.trail,
                    ended.stop_reason,
                    ended.usage,
                    answer="" if ended.fault is not None else to_json(ended.value).decode(),
                    error=str(ended.fault) if ended.fault is not None else ended.error,
                )
            )
        if ended.fault is not None:
            raise ended.fault
        return ended.value

    async def keep_patch(self, assignment: RecordedAssignment[object], patch: bytes) -> BlobRef:
        """Store what a run changed. Raises Unavailable, ResourceExhausted."""
        return await self.blobs.put(assignment.task.tenant, assignment.execution_id, patch, PATCH_MEDIA_TYPE)

    @asynccontextmanager
    async def claimed(self, assignment: RecordedAssignment[object], clone: Clone | None) -> AsyncGenerator[RunContext]:
        """A run that is this process's, with what the log has of it; see `recorded_run`."""
        tenant, execution_id = assignment.task.tenant, assignment.execution_id

        async def store(data: bytes) -> BlobRef:
            return await self.blobs.put(tenant, execution_id, data, "text/plain")

        async with recorded_run(
            self.log, writer_of(assignment), host=self.host, audit_key=self.audit_key, resumes=assignment.resumes
        ) as run:
            context = RunContext(equipment=self.equipment, trail=run.trail, journal=run.journal, store=store)
            if clone is not None:
                context.keeper = WorkspaceKeeper(
                    clone=clone,
                    journal=run.journal,
                    blobs=self.blobs,
                    owner=Owner(tenant=tenant, execution_id=execution_id),
                    trail=run.trail,
                )
            # Until the claim is durable, the last owner may still write.
            await run.journal.flush()
            if not assignment.resumes:
                context.record = run.journal.record
            else:
                context.earlier = await read_run(self.log, tenant, execution_id, assignment.agent_id)
            yield context


@dataclass(frozen=True, kw_only=True)
class RunResources:
    """What a run has once its model is known; all its tools go through the pipeline."""

    model: ChatModel
    capabilities: ModelCapabilities
    budget: Budget
    pipeline: Pipeline


@dataclass(kw_only=True, eq=False)
class AgentSpec(ABC, Generic[T]):
    """One kind of agent: what it is told, what it can call, what ends it, and how its answer is read.

    Attributes:
        task: Whose run it is.
        budget: What it may spend; its clock starts, at the model's prices, once the model is known.
        policy: What it may call.
        perspective: Which model it asks, and how that samples.
        rules: What ends it beside its budget.
        observation_chars: What it is shown of one result at most.
        environment: Names what its workspace has installed.
        lasting: Whether its workspace and whole results are kept, or each process of the run has the workspace anew.
    """

    task: Task
    budget: Budget
    policy: Policy
    perspective: Perspective = _ANY
    rules: Rules = LOOKING_AROUND
    observation_chars: int = OBSERVATION_CHARS
    environment: str = ""
    lasting: bool = True

    @abstractmethod
    def tools(self, resources: RunResources) -> AbstractAsyncContextManager[Toolbox]:
        """What it can call, until the context ends."""

    @abstractmethod
    async def opening(self, resources: RunResources, toolbox: Toolbox) -> Sequence[Message]:
        """Its first messages; of a run that goes on they stand in the log."""

    async def drive(self, parts: RunParts) -> Trajectory:
        """Let it work until it is done or a limit is hit."""
        return await AgentRun(parts).drive()

    @abstractmethod
    async def read(self, parts: RunParts, trajectory: Trajectory) -> T:
        """What comes of its work, while its tools are still there."""


async def opening_of(spec: AgentSpec[Any], run: RunContext) -> Opening:
    """What an agent would begin with. Raises as `run_agent` does before the first message."""
    resources = await _resources(spec, run)
    async with spec.tools(resources) as toolbox:
        system, task = await spec.opening(resources, toolbox)
        return Opening(
            system=system.content,
            task=task.content,
            tools=tuple(f"{tool.name}: {first_line(tool)}" for tool in toolbox.specs),
            model=resources.capabilities.model,
        )


async def _resources(spec: AgentSpec[Any], run: RunContext) -> RunResources:
    model, capabilities = await run.model(spec.task, spec.perspective, spec.budget)
    pipeline = Pipeline(
        trail=run.trail,
        policy=spec.policy,
        mask=run.equipment.mask,
        store=run.store if spec.lasting else None,
        limits=ToolLimits(
            command_timeout_seconds=spec.budget.limits.command_timeout_seconds,
            observation_chars=spec.observation_chars,
        ),
        cache=run.equipment.cache(spec.task),
    )
    return RunResources(model=model, capabilities=capabilities, budget=spec.budget, pipeline=pipeline)


async def run_agent(spec: AgentSpec[T], run: RunContext) -> T:
    """Run an agent to its end, from its first message or from where an earlier process left it.

    Raises what the spec's methods raise, ModelError where the model cannot be asked what it can do, InvalidRequest for
    a model that is not there. Model faults later and spent limits are stop reasons of the trajectory.
    """
    if run.keeper is not None:
        run.earlier = await resume(run.earlier, run.keeper, run.keeper.blobs, lasting=spec.lasting)
    resources = await _resources(spec, run)
    capabilities = resources.capabilities
    async with spec.tools(resources) as toolbox:
        sampling = Sampling(temperature=spec.perspective.temperature, seed=spec.perspective.seed)
        if run.earlier.started is None:
            run.begin(
                RunStarted(
                    role=spec.task.role,
                    model=capabilities.model,
                    messages=tuple(await spec.opening(resources, toolbox)),
                    tools=tuple(tool.name for tool in toolbox.specs),
                    temperature=sampling.temperature,
                    seed=sampling.seed,
                    environment=spec.environment,
                )
            )
        history, steps = History(run.earlier.messages, context_tokens=capabilities.max_model_len), run.earlier.steps
        parts = RunParts(
            model=run.recording_tokens(resources.model, spec.perspective),
            toolbox=toolbox,
            history=history,
            budget=spec.budget,
            rules=spec.rules,
            journal=run.journal,
            # The last step is still to be judged where nothing was said since.
            guard=LoopGuard(toolbox.specs, earlier=steps[:-1] if ends_with_step(history) else steps),
            sampling=sampling,
            steps=steps,
        )
        return await spec.read(parts, await spec.drive(parts))


class RecordedQuestions(Questions):
    """The questions of a run that consists of nothing else.

    What a model replied in an earlier process counts as if it replied now, so what is asked must follow from what was
    replied before.

    Args:
        run: The run.
        model: Who is asked.
        budget: Pays for it; its clock is started.
        started: How the run begins, the messages aside.
        anew: Nothing that an earlier process was replied counts.
    """

    def __init__(
        self, run: RunContext, model: ChatModel, budget: Budget, *, started: RunStarted, anew: bool = False
    ) -> None:
        super().__init__(model, budget, run.journal)
        self._run, self._started = run, started
        earlier, ended = run.earlier, run.earlier.finished
        if anew or earlier.started is None or (ended is not None and ended.stop_reason is not StopReason.CANCELLED):
            earlier = replace(earlier, started=None, messages=(), steps=())
        else:
            # What is replied again is spent again.
            budget.usage = Usage(duration_ms=budget.usage.duration_ms)
        self.opening = earlier.started.messages if earlier.started is not None else ()
        """What the run began with in an earlier process; empty where it begins here."""
        self._replied, self._last = deque(earlier.steps), earlier.messages[-1:]
        self._shown: Sequence[Message] = self.opening

    @classmethod
    async def opened(
        cls,
        run: RunContext,
        task: Task,
        perspective: Perspective,
        budget: Budget,
        *,
        environment: str = "",
        anew: bool = False,
    ) -> tuple[RecordedQuestions, ModelCapabilities]:
        """Questions to the model of a run, and what it can do. Raises ModelError, InvalidRequest (there is none)."""
        model, capabilities = await run.model(task, perspective, budget)
        started = RunStarted(
            role=task.role,
            model=capabilities.model,
            messages=(),
            tools=(),
            temperature=perspective.temperature,
            seed=perspective.seed,
            environment=environment,
        )
        model = run.recording_tokens(model, perspective)
        return cls(run, model, budget, started=started, anew=anew), capabilities

    def begin(self, messages: tuple[Message, ...], method: str = ASKED_AGAIN) -> tuple[Message, ...]:
        """The messages, recorded as the whole of the conversation from here on."""
        if not self._stands(messages[-1]):
            if not self._shown:
                self._run.begin(replace(self._started, messages=messages))
            else:
                before, after = (
                    sum(len(message.content) for message in some) // _CHARS_PER_TOKEN
                    for some in (self._shown, messages)
                )
                self._run.post(
                    HistoryCondensed(
                        step=self.step, method=method, messages=messages, tokens_before=before, tokens_after=after
                    )
                )
        self._shown = messages
        return messages

    def add(self, message: UserMessage) -> None:
        """Record a message of the conversation."""
        if not self._stands(message):
            super().add(message)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The reply to a request, recorded and paid for. Raises ModelError."""
        if not self._replied:
            return await super().reply(request)
        step = self._replied.popleft()
        self.budget.settle(step.usage)
        self.step += 1
        return ModelReply(message=step.reply, finish_reason="stop", usage=step.usage)

    def _stands(self, message: Message) -> bool:
        """Whether the log has a message that is told next."""
        if self._replied:
            return True
        last, self._last = self._last, ()
        return last == (message,)
