"""A recorded run carried out again in a clone of its own, against its recorded replies or a model behind them."""

from __future__ import annotations

import re
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.agent_run import AgentRun, Rules, RunParts
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.loop_guard import normalise_output
from swe_ai_fleet.agents.planning.progress import PlanCallId
from swe_ai_fleet.agents.recording import RecordedGate, RecordedModel, RecordedNews, forked_history, went_the_same_way
from swe_ai_fleet.agents.solving import policy_of
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.candidate import Diff
from swe_ai_fleet.domain.council import HARNESS
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.message import Sampling
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.domain.trajectory import Trajectory
from swe_ai_fleet.orchestrator.runs import is_draft
from swe_ai_fleet.runtime.factories import open_model, workspace_provider
from swe_ai_fleet.runtime.tool_services import secret_mask, tool_access, with_isolation_level
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.catalogue import open_toolkits
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.tests import TestTool

_COMMIT = re.compile(r"\b[0-9a-f]{7,40}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An observation that is not what was recorded, clocks and the like aside."""

    step: int
    call_id: str
    operation: str
    recorded: str
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What carrying a run out again gave. `same` speaks of the recorded part: no difference, and the same end."""

    trajectory: Trajectory
    diff: Diff
    differences: tuple[Difference, ...]
    forked_at: int | None
    same: bool


async def replay(
    settings: Settings, state: ExecutionState, run: RunState, *, fork_at: int | None = None, prompt: str = ""
) -> Replay:
    """Carry a run out again from its pinned commit, in a sandboxed clone that is removed afterwards.

    Args:
        settings: Where things are; with a fork also the model server that goes on.
        fork_at: After so many recorded replies the model server goes on; None: the recording is all there is.

    Raises InvalidRequest for a run without a beginning, one of an external agent, one that worked by a plan or that is
    no first draft, or a fork behind its end, and FleetErrors of the repository, the sandbox and the model server.
    """
    if run.started is None:
        raise InvalidRequest(f"{run.agent_id} has not started", field="agent")
    if run.started.model.startswith((HARNESS, "external:")):
        raise InvalidRequest(
            f"{run.agent_id} is no agent of the fleet's own: what it did by itself cannot be done again",
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
        # What the log says failed on the untouched commit.
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
    ended = fork_at is not None or went_the_same_way(trajectory.stop_reason, run)
    return Replay(
        trajectory=trajectory,
        diff=diff,
        differences=differences,
        forked_at=fork_at,
        same=not differences and ended and model.exhausted,
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
    """What of an observation does not depend on when it was made; a commit's id does."""
    return _COMMIT.sub("<commit>", normalise_output(observation))
