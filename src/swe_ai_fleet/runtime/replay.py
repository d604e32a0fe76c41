"""Replays a recorded run in a new clone, with its recorded replies, and optionally a model after some of them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.agent_run import LAST_LOOK_TITLE, AgentRun, Rules, RunParts
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.loop_guard import normalise_output
from swe_ai_fleet.agents.opening import TITLE
from swe_ai_fleet.agents.planning.progress import PlanCallId
from swe_ai_fleet.agents.solving import policy_of
from swe_ai_fleet.agents.toolbox import CallVerdict, Ruling, Toolbox
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Diff
from swe_ai_fleet.domain.council import HARNESS
from swe_ai_fleet.domain.errors import InvalidRequest, ModelRejected
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.message import (
    AssistantMessage,
    Message,
    ModelCapabilities,
    ModelReply,
    ModelRequest,
    Sampling,
    ToolCall,
    ToolMessage,
)
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.domain.tool import PolicyDecision
from swe_ai_fleet.domain.trajectory import Step, StopReason, Trajectory
from swe_ai_fleet.orchestrator.runs import is_draft
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.runtime.factories import open_model, workspace_provider
from swe_ai_fleet.runtime.tool_services import secret_mask, tool_access, with_isolation_level
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.catalogue import open_toolkits
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.tests import TestTool

NEVER = "not executed: it was not executed in the recording"


class RecordedModel:
    """A `ChatModel` that returns a run's first `until` replies (None: all) in order, whatever the requests.

    Afterwards `then` answers; without it further requests raise ModelRejected.
    """

    def __init__(self, run: RunState, *, until: int | None = None, then: ChatModel | None = None) -> None:
        self._name = run.started.model if run.started else ""
        self._replies = [step.reply for step in run.steps][:until]
        self._next = 0
        self._then = then

    @property
    def exhausted(self) -> bool:
        return self._next >= len(self._replies)

    async def probe(self) -> ModelCapabilities:
        """The capabilities of the model that answers afterwards, else only the recorded name. Raises ModelError."""
        return await self._then.probe() if self._then is not None else ModelCapabilities(model=self._name)

    async def ping(self) -> None:
        """Raises ModelError where the model that answers afterwards does not respond."""
        if self._then is not None:
            await self._then.ping()

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The next recorded reply, at no cost. Raises ModelRejected after the last one if no model follows."""
        if self.exhausted:
            if self._then is None:
                raise ModelRejected("the recording ends here")
            return await self._then.reply(request)
        message = self._replies[self._next]
        self._next += 1
        finish = "tool_calls" if message.tool_calls else "stop"
        return ModelReply(message=message, finish_reason=finish, usage=Usage(model_calls=1), model=self._name)


class RecordedGate:
    """An `ApprovalGate` that repeats recorded decisions: calls that a person refused are refused with the same text,
    and calls that were not executed are not executed now."""

    def __init__(self, run: RunState) -> None:
        refused = {entry.call_id for entry in run.entries if entry.decision is PolicyDecision.REFUSED}
        executed = {observation.call_id for step in run.steps for observation in step.observations}
        self._refusals = {
            call.call_id: NEVER for step in run.steps for call in step.reply.tool_calls if call.call_id not in executed
        }
        self._refusals |= {
            observation.call_id: observation.result.error
            for step in run.steps
            for observation in step.observations
            if observation.call_id in refused
        }

    async def review(self, calls: Sequence[ToolCall], *, step: int, truncated: bool = False) -> Sequence[Ruling]:
        return [
            Ruling(verdict=CallVerdict.REFUSE, text=self._refusals[call.call_id])
            if call.call_id in self._refusals
            else Ruling()
            for call in calls
        ]


class RecordedNews:
    """The baseline as the recorded run received it: the same text, before the same reply."""

    def __init__(self, run: RunState, failing: Collection[str]) -> None:
        self._run, self._failing = run, failing
        opening = len(run.started.messages) if run.started else 0
        self._received = _news_in(run.messages[:opening]) != ""
        self._next = 0
        self._texts: list[str] = []
        text = ""
        for message in run.messages[opening:]:
            if isinstance(message, AssistantMessage):
                self._texts.append(text)
                text = ""
            text = text or _news_in([message])

    async def text(self) -> str:
        text = self._texts[self._next] if self._next < len(self._texts) else ""
        self._next += 1
        self._received = self._received or bool(text)
        return text

    async def last_look(self, steps: Sequence[Step]) -> str:
        """The recorded request for a last look after the run's first answer; empty where there was none."""
        texts = (message.content for message in self._run.messages if isinstance(message, ToolMessage))
        return next((text.removeprefix(LAST_LOOK_TITLE) for text in texts if text.startswith(LAST_LOOK_TITLE)), "")

    async def failing(self) -> Collection[str] | None:
        """The tests that fail on the untouched commit; None until the run received it."""
        return self._failing if self._received else None


def _news_in(messages: Sequence[Message]) -> str:
    return next((message.content for message in messages if TITLE in message.content), "")


def forked_history(run: RunState, prompt: str) -> tuple[Message, ...]:
    """The opening messages of a run, with another system prompt if one is given."""
    opening = run.started.messages if run.started else ()
    if not prompt or not opening:
        return opening
    return (replace(opening[0], content=prompt), *opening[1:])


def ended_as_recorded(stop: StopReason, recorded: RunState) -> bool:
    """Whether a replay ended like its recording; one without an end is replayed to its last reply."""
    if recorded.finished is None:
        return stop is StopReason.MODEL_ERROR
    return stop is recorded.finished.stop_reason or (
        stop is StopReason.MODEL_ERROR and recorded.finished.stop_reason is not StopReason.FINAL_ANSWER
    )


_COMMIT = re.compile(r"\b[0-9a-f]{7,40}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An observation that differs from the recorded one, apart from times and the like."""

    step: int
    call_id: str
    operation: str
    recorded: str
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of a replay. `same`: the recorded part had no differences and the same end."""

    trajectory: Trajectory
    diff: Diff
    differences: tuple[Difference, ...]
    forked_at: int | None
    same: bool


async def replay(
    settings: Settings, state: ExecutionState, run: RunState, *, fork_at: int | None = None, prompt: str = ""
) -> Replay:
    """Replay a run from its pinned commit, in a sandboxed clone that is removed afterwards.

    Args:
        settings: The settings of repositories and sandbox, and of the model server after a fork.
        fork_at: How many recorded replies are used before the model server answers; None: all, without a server.

    Raises InvalidRequest for a run that has not started, that is an external agent's, that used a plan or that is no
    first draft, and for a fork after its end; FleetErrors of the repository, the sandbox and the model server.
    """
    if run.started is None:
        raise InvalidRequest(f"{run.agent_id} has not started", field="agent")
    if run.started.model.startswith((HARNESS, "external:")):
        raise InvalidRequest(
            f"{run.agent_id} is an external agent, whose own actions cannot be replayed",
            field="agent",
            hint="its recording can be watched and exported",
        )
    if any(PlanCallId.read(call.call_id) is not None for step in run.steps for call in step.reply.tool_calls):
        raise InvalidRequest(
            f"{run.agent_id} worked with a plan", field="agent", hint="only runs that go step by step can be replayed"
        )
    if state.repository.bundle is not None or not is_draft(state, run.agent_id):
        raise InvalidRequest(
            f"{run.agent_id} did not start from the pinned commit alone",
            field="agent",
            hint="only first drafts can be replayed: no reviews, revisions, merges or subtasks that build on others",
        )
    if fork_at is not None and not 0 <= fork_at <= len(run.steps):
        raise InvalidRequest(f"the run has {len(run.steps)} steps", field="fork_at", hint=f"0 to {len(run.steps)}")
    task = state.task
    settings = await with_isolation_level(settings)
    access = tool_access(settings)
    workspaces = workspace_provider(settings)
    pinned = state.repository
    repository = await workspaces.pin(
        pinned.tenant, RepoRef(location=pinned.location, commit=pinned.commit, subdirectory=pinned.subdirectory)
    )
    environment = await workspaces.environment(repository, task.environment)
    environment = replace(environment, network=access.hosts(task.constraints))
    replay_id = f"replay-{uuid.uuid4().hex[:12]}"
    async with AsyncExitStack() as stack:
        stack.push_async_callback(workspaces.release, replay_id)
        clone = await stack.enter_async_context(workspaces.open(replay_id, run.agent_id, repository, environment))
        then = await stack.enter_async_context(open_model(settings)) if fork_at is not None else None
        model = RecordedModel(run, until=fork_at, then=then)
        limits = ToolLimits(command_timeout_seconds=task.constraints.limits.command_timeout_seconds)
        trail = AuditTrail(execution_id=replay_id, agent_id=run.agent_id)
        pipeline = Pipeline(trail=trail, policy=policy_of(task), mask=secret_mask(settings), limits=limits)
        opened = await stack.enter_async_context(open_toolkits(clone, pipeline, access, task))
        suites = state.baseline.suites if state.baseline is not None else ()
        # The tests that failed on the untouched commit, according to the log.
        news = RecordedNews(run, next((suite.tests.failing for suite in suites if suite.tests is not None), ()))
        if isinstance(tests := opened.toolkits.get(TestTool.name), TestTool):
            tests.failed_before = news.failing
        parts = RunParts(
            model=model,
            toolbox=Toolbox(opened.toolkits, pipeline, idle=opened.idle, unlisted=opened.unlisted),
            history=History(forked_history(run, prompt)),
            budget=Budget(task.constraints.limits),
            rules=Rules(abort_on_error=task.constraints.abort_on_error),
            gate=RecordedGate(run),
            sampling=Sampling(temperature=run.started.temperature, seed=run.started.seed),
            news=news.text,
            last_look=news.last_look,
        )
        trajectory = await AgentRun(parts).drive()
        diff = await clone.diff()
    differences = _differences(run, trajectory, until=fork_at)
    same_end = fork_at is not None or ended_as_recorded(trajectory.stop_reason, run)
    return Replay(
        trajectory=trajectory,
        diff=diff,
        differences=differences,
        forked_at=fork_at,
        same=not differences and same_end and model.exhausted,
    )


def _differences(run: RunState, trajectory: Trajectory, *, until: int | None) -> tuple[Difference, ...]:
    recorded = {seen.call_id: seen.result.observation() for step in run.steps for seen in step.observations}
    return tuple(
        Difference(
            step=step.number,
            call_id=seen.call_id,
            operation=seen.result.operation,
            recorded=recorded[seen.call_id],
            seen=seen.result.observation(),
        )
        for step in trajectory.steps[:until]
        for seen in step.observations
        if seen.call_id in recorded and _comparable(recorded[seen.call_id]) != _comparable(seen.result.observation())
    )


def _comparable(observation: str) -> str:
    """An observation without the parts that depend on its time, such as commit ids."""
    return _COMMIT.sub("<commit>", normalise_output(observation))
