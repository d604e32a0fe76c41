"""The dependencies that the runs of one process share, and the recording of a run: claimed, resumed and ended here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from swe_ai_fleet.agents.budget import Budget, Clock
from swe_ai_fleet.agents.model_middleware import TokenRecordingModel, WatchedModel
from swe_ai_fleet.agents.opening import FactsCache
from swe_ai_fleet.agents.planning.plan_run import ModeRules
from swe_ai_fleet.agents.recorded_run import WorkspaceKeeper, concluded, read_run, recorded_run, run_finished, writer_of
from swe_ai_fleet.agents.results import ToolRecord
from swe_ai_fleet.agents.sub_agents.memory import MemorySearch, RepositoryMemory
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentLimits
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.assignment import RecordedAssignment
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Limits, Prices, Usage
from swe_ai_fleet.domain.candidate import Perspective
from swe_ai_fleet.domain.command import Owner
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest
from swe_ai_fleet.domain.event import EventBody, ModelAwaited, RunFinished, RunStarted
from swe_ai_fleet.domain.message import ModelCapabilities
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.task import PlanningMode, Task
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import (
    Baselines,
    BlobStore,
    CallTimeout,
    ChatModel,
    Clone,
    EventLog,
    Hear,
    Journal,
    LiveText,
    ModelSessions,
    Workspace,
)
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.catalogue import ToolAccess
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.policy import Policy
from swe_ai_fleet.tools.result_cache import ResultCache, SharedResults
from swe_ai_fleet.tools.secrets import Secrets

T = TypeVar("T")

ANY_MODEL = "*"
"""The name of the price for every model without a price of its own."""
SHORT_SECONDS = 600.0
PATCH_MEDIA_TYPE = "text/x-diff"
_NEW = RunState(agent_id="")


@dataclass(frozen=True, kw_only=True)
class RunDeps:
    """Made once a process; nothing in it belongs to a single run.

    Attributes:
        models: By profile; the empty name is the default.
        results: A cache of lookups shared by the runs of a tenant; None: each run has only its own.
        alone: Whether only the agents change their workspaces; otherwise no result is reused for a second, equal call.
        token_profiles: Model profiles whose replies are recorded with token ids and log-probabilities.
        remembering: Adds the memories of other runs to `search_memory`, for tasks that read memory; None: it searches
            only the repository.
    """

    models: Mapping[str, ChatModel]
    access: ToolAccess = field(default_factory=ToolAccess)
    mask: Secrets = field(default_factory=Secrets)
    facts: FactsCache = field(default_factory=FactsCache)
    results: SharedResults | None = None
    alone: bool = True
    prices: Mapping[str, Prices] = field(default_factory=dict[str, Prices])
    token_profiles: frozenset[str] = frozenset()
    planning_mode: PlanningMode = PlanningMode.AGENTIC
    mode_rules: ModeRules = field(default_factory=ModeRules)
    parallel: bool = True
    sub_agents: SubAgentLimits = field(default_factory=SubAgentLimits)
    live: LiveText | None = None
    remembering: Callable[[Task, MemorySearch], MemorySearch] | None = None
    baselines: Baselines | None = None

    def memory_search(self, task: Task, workspace: Workspace) -> MemorySearch:
        repository = RepositoryMemory(workspace)
        if self.remembering is None or not task.memory.read:
            return repository
        return self.remembering(task, repository)

    def model(self, task: Task, perspective: Perspective, trail: AuditTrail, hear: Hear | None = None) -> ChatModel:
        """The model of one run, on one server throughout; its text goes to `live`, if there is one.

        `hear` is called when the run starts and stops waiting for a model server (see `CallTimeout`). Raises
        InvalidRequest for an unknown profile.
        """
        profile = perspective.model_profile
        if profile not in self.models:
            raise InvalidRequest(f"there is no model profile {profile[:64]!r}", field="model_profile")
        model = self.models[profile]
        if isinstance(model, ModelSessions):
            timeout = CallTimeout(seconds=task.model_patience_seconds, hear=hear)
            name = f"{task.execution_id}/{trail.agent_id}"
            model = model.session(name, tenant=task.tenant, priority=task.priority, timeout=timeout)
        if self.live is None:
            return model
        return WatchedModel(
            model=model,
            live=self.live,
            tenant=task.tenant,
            execution_id=task.execution_id,
            agent_id=trail.agent_id,
            secrets=self.mask,
        )

    def price(self, model: str) -> Prices | None:
        """The prices of a model; None if there are none."""
        return self.prices.get(model) or self.prices.get(ANY_MODEL)

    def cache(self, task: Task) -> ResultCache | None:
        return ResultCache(tenant=task.tenant, shared=self.results) if self.alone else None


def short_limits(limits: Limits) -> Limits:
    """The limits of a run that changes nothing (a review, a judgement), given those of the task's agents."""
    return replace(limits, timeout_seconds=min(SHORT_SECONDS, limits.timeout_seconds))


@dataclass(kw_only=True)
class RunContext:
    """One run in progress: its dependencies, its journal, and its state when this process claimed it (`earlier`).

    `record` has the tool calls of this process; None for a resumed run, whose earlier calls are only in the log.
    """

    deps: RunDeps
    trail: AuditTrail
    journal: Journal | None = None
    store: Callable[[bytes], Awaitable[BlobRef]] | None = None
    keeper: WorkspaceKeeper | None = None
    earlier: RunState = _NEW
    record: ToolRecord | None = None
    clock: Clock = field(default_factory=Clock)

    async def model(self, task: Task, perspective: Perspective, budget: Budget) -> tuple[ChatModel, ModelCapabilities]:
        """The model and its capabilities; starts the budget's clock, at the model's prices.

        Raises ModelError, InvalidRequest (unknown model).
        """
        model = self.deps.model(task, perspective, self.trail, self._stopping(budget.clock))
        capabilities = await model.probe()
        budget.begin(self.deps.price(capabilities.model))
        return model, capabilities

    def _stopping(self, clock: Clock) -> Hear:
        """Stops the clock while the model server is away, and records that."""

        def hear(is_away: bool) -> None:
            if is_away and clock.stop():
                self.post(ModelAwaited())
            elif not is_away and (waited := clock.go()):
                self.post(ModelAwaited(waited_ms=max(1, round(waited * 1000))))

        return hear

    def recording_tokens(self, model: ChatModel, perspective: Perspective) -> ChatModel:
        """The model; it records the tokens of its replies if its profile asks for that and the run has a store."""
        if self.store is None or perspective.model_profile not in self.deps.token_profiles:
            return model
        return TokenRecordingModel(model=model, store=self.store)

    def pipeline(self, task: Task, policy: Policy, limits: Limits, *, chars: int, lasting: bool = True) -> Pipeline:
        """The pipeline of the run's tool calls: results are cut to `chars`, and a `lasting` run stores them whole."""
        return Pipeline(
            trail=self.trail,
            policy=policy,
            mask=self.deps.mask,
            store=self.store if lasting else None,
            limits=ToolLimits(command_timeout_seconds=limits.command_timeout_seconds, observation_chars=chars),
            cache=self.deps.cache(task),
        )

    def post(self, body: EventBody) -> None:
        if self.journal is not None:
            self.journal.post(body)

    def begin(self, started: RunStarted) -> None:
        self.post(started)
        self.earlier = RunState(agent_id=self.trail.agent_id, started=started, messages=started.messages)

    async def end(self, finished: RunFinished) -> str:
        """Record the end of the run and delete its checkpoint, unless it was cancelled; the time of the end."""
        at = (await self.journal.append(finished)).at if self.journal is not None else now()
        if self.keeper is not None and finished.stop_reason is not StopReason.CANCELLED:
            await self.keeper.supersede(None)
        return at


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnding(Generic[T]):
    """The result of a run, and how it ended.

    With a `fault` there is no result: the fault is raised once the end is recorded.
    """

    value: T
    stop_reason: StopReason
    usage: Usage
    error: str = ""
    fault: FleetError | None = None


@dataclass(frozen=True, kw_only=True)
class RunRecorder:
    """Claims runs in the log, stores their results, and records their ends; one for all runs of a process."""

    deps: RunDeps
    log: EventLog
    blobs: BlobStore
    audit_key: bytes = b""
    host: str = ""

    async def run(
        self,
        assignment: RecordedAssignment[T],
        clone: Clone | None,
        work: Callable[[RunContext], Awaitable[RunEnding[T]]],
    ) -> T:
        """Run the work of an assignment and record its result; the result of a run that has ended is returned again.

        Raises Fenced, Unavailable, the fault that the work ended with; a cancellation passes after it was recorded.
        """
        async with self.claimed(assignment, clone) as run:
            if (outcome := concluded(run.earlier, assignment.gives)) is not None:
                return outcome
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
        """Store the patch of a run. Raises Unavailable, ResourceExhausted."""
        return await self.blobs.put(assignment.task.tenant, assignment.execution_id, patch, PATCH_MEDIA_TYPE)

    @asynccontextmanager
    async def claimed(self, assignment: RecordedAssignment[object], clone: Clone | None) -> AsyncGenerator[RunContext]:
        tenant, execution_id = assignment.task.tenant, assignment.execution_id

        async def store(data: bytes) -> BlobRef:
            return await self.blobs.put(tenant, execution_id, data, "text/plain")

        async with recorded_run(
            self.log, writer_of(assignment), host=self.host, audit_key=self.audit_key, resumes=assignment.resumes
        ) as run:
            context = RunContext(deps=self.deps, trail=run.trail, journal=run.journal, store=store)
            if clone is not None:
                context.keeper = WorkspaceKeeper(
                    clone=clone,
                    journal=run.journal,
                    blobs=self.blobs,
                    owner=Owner(tenant=tenant, execution_id=execution_id),
                    trail=run.trail,
                )
            # Until the claim is durable, the previous owner may still write.
            await run.journal.flush()
            if not assignment.resumes:
                context.record = run.journal.record
            else:
                context.earlier = await read_run(self.log, tenant, execution_id, assignment.agent_id)
            yield context
