"""What every agent run does: an `AgentSpec` has the prompt, the tools and the reading of the answer of one kind of
agent; `run_agent` does the rest. Agents without tools answer `RecordedQuestions`.
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
from swe_ai_fleet.agents.recorded_run import resume
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
ASKED_AGAIN = "asked again"  # A `HistoryCondensed`'s method: the question was rephrased.
_CHARS_PER_TOKEN = 4
LOOKING_AROUND = Rules(max_reminders=0, max_tool_errors=6, answer_at_limit=True)
"""For an agent that only reads and answers: its first reply without a call is the answer."""
_ANY = Perspective()


@dataclass(frozen=True, kw_only=True)
class RunResources:
    """The model of a run, and the pipeline that all its tool calls go through."""

    model: ChatModel
    capabilities: ModelCapabilities
    pipeline: Pipeline


@dataclass(kw_only=True, eq=False)
class AgentSpec(ABC, Generic[T]):
    """One kind of agent: its prompt, its tools, what ends it, and how its answer is read.

    The budget's clock starts, at the model's prices, once the model is known. Unless the run is `lasting`, neither
    the workspace nor whole results are stored: each process of the run starts with a fresh workspace.
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
        """The agent's tools, which work until the context ends."""

    @abstractmethod
    async def opening(self, resources: RunResources, toolbox: Toolbox) -> Sequence[Message]:
        """The first messages. Not called for a resumed run: its log has them."""

    async def drive(self, parts: RunParts) -> Trajectory:
        return await AgentRun(parts).drive()

    @abstractmethod
    async def read(self, parts: RunParts, trajectory: Trajectory) -> T:
        """The result of the run; the tools still work."""


async def opening_of(spec: AgentSpec[Any], run: RunContext) -> Opening:
    """The messages and tools that an agent would start with. Raises as `run_agent` does before the first message."""
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

    Raises what the spec's methods raise, ModelError if the model's capabilities cannot be read, InvalidRequest for
    an unknown model. Model faults later and spent limits are stop reasons of the trajectory.
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
            # A last step without a message after it has not been judged yet; `AgentRun` shows it to the guard.
            guard=LoopGuard(toolbox.specs, earlier=steps[:-1] if ends_with_step(history) else steps),
            sampling=sampling,
            steps=steps,
        )
        return await spec.read(parts, await spec.drive(parts))


class RecordedQuestions(Questions):
    """The questions of a run without tools.

    Replies that an earlier process got are returned again instead of asking the model, so each question may depend on
    nothing but earlier replies.
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
            # Replayed replies are charged again.
            budget.usage = Usage(duration_ms=budget.usage.duration_ms)
        self.opening = earlier.started.messages if earlier.started is not None else ()
        """The run's first messages in an earlier process; empty in a new run."""
        self._replies, self._last = deque(earlier.steps), earlier.messages[-1:]
        self._asked: Sequence[Message] = self.opening

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
        """Questions to the model of a run, and its capabilities. Raises ModelError, InvalidRequest (unknown model)."""
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
        if not self._is_recorded(messages[-1]):
            if not self._asked:
                self._run.begin(replace(self._started, messages=messages))
            else:
                before, after = (
                    sum(len(message.content) for message in prompt) // _CHARS_PER_TOKEN
                    for prompt in (self._asked, messages)
                )
                self._run.post(
                    HistoryCondensed(
                        step=self.step, method=method, messages=messages, tokens_before=before, tokens_after=after
                    )
                )
        self._asked = messages
        return messages

    def add(self, message: UserMessage) -> None:
        if not self._is_recorded(message):
            super().add(message)

    async def reply(self, request: ModelRequest) -> ModelReply:
        if not self._replies:
            return await super().reply(request)
        step = self._replies.popleft()
        self.budget.settle(step.usage)
        self.step += 1
        return ModelReply(message=step.reply, finish_reason="stop", usage=step.usage)

    def _is_recorded(self, message: Message) -> bool:
        """Whether an earlier process has recorded the message that is sent next."""
        if self._replies:
            return True
        last, self._last = self._last, ()
        return last == (message,)
