"""What every agent run does: an `AgentSpec` says what one kind of agent is told, what it can call and how its answer is
read; `run_agent` does the rest. Agents that call nothing answer `RecordedQuestions`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from swe_ai_fleet.agents.agent_run import AgentRun, Rules, RunParts, ends_with_step
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.loop_guard import LoopGuard
from swe_ai_fleet.agents.recorded_run import (
    resume,
)
from swe_ai_fleet.agents.run_deps import RunContext
from swe_ai_fleet.agents.structured_output import Questions
from swe_ai_fleet.agents.toolbox import Toolbox, first_line
from swe_ai_fleet.domain.assignment import Opening
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Perspective
from swe_ai_fleet.domain.event import HistoryCondensed, RunStarted
from swe_ai_fleet.domain.message import Message, ModelCapabilities, ModelReply, ModelRequest, Sampling, UserMessage
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.trajectory import StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.policy import Policy

T = TypeVar("T")
OBSERVATION_CHARS = 16_000
ASKED_AGAIN = "asked again"  # A `HistoryCondensed`'s method: the question is put in other words.
_CHARS_PER_TOKEN = 4
LOOKING_AROUND = Rules(max_reminders=0, max_tool_errors=6, answer_at_limit=True)
"""For an agent that looks around and answers: its first reply without a call is the answer."""
_ANY = Perspective()


@dataclass(frozen=True, kw_only=True)
class RunResources:
    """What a run has once its model is known; all its tools go through the pipeline."""

    model: ChatModel
    capabilities: ModelCapabilities
    pipeline: Pipeline


@dataclass(kw_only=True, eq=False)
class AgentSpec(ABC, Generic[T]):
    """One kind of agent: what it is told, what it can call, what ends it, and how its answer is read.

    The budget's clock starts, at the model's prices, once the model is known. Unless the run is `lasting`, neither
    workspace nor whole results are kept: each process of it has the workspace anew.
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
    pipeline = run.pipeline(
        spec.task, spec.policy, spec.budget.limits, chars=spec.observation_chars, lasting=spec.lasting
    )
    return RunResources(model=model, capabilities=capabilities, pipeline=pipeline)


async def run_agent(spec: AgentSpec[T], run: RunContext) -> T:
    """Run an agent to its end, from its first message or from where an earlier process left it.

    Raises what the spec's methods raise, ModelError where the model cannot be asked what it can do, InvalidRequest for
    a model that is not there. Model faults later and spent limits are stop reasons of the trajectory.
    """
    if run.keeper is not None:
        run.earlier = await resume(run.earlier, run.keeper, lasting=spec.lasting)
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
        if not self._stands(message):
            super().add(message)

    async def reply(self, request: ModelRequest) -> ModelReply:
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
