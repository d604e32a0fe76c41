"""Asks a model for a plan, and does not take one that cannot be carried out."""

from __future__ import annotations

from collections.abc import Mapping

from swe_ai_fleet.agents.planning.operations import MAX_STEPS, Operations
from swe_ai_fleet.agents.planning.reading import Verdict, read_verdict
from swe_ai_fleet.agents.run_parts import RunParts
from swe_ai_fleet.agents.templates import rendered
from swe_ai_fleet.domain.errors import ContextTooLong, ModelError
from swe_ai_fleet.domain.event import MessageAdded, ModelReplied
from swe_ai_fleet.domain.message import ModelReply, ModelRequest, Sampling, UserMessage
from swe_ai_fleet.domain.plan import OnFailure, Plan
from swe_ai_fleet.domain.trajectory import StopReason

OUTLINE_LINES = 8
MAX_CORRECTIONS = 2
"""How often a plan with mistakes goes back to the model."""
GO = "Carry it out now, and change it where what you find asks for that. Call final_answer when the task is done."
PLAN_SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "reasoning": {"type": "string"},
        "steps": {
            "type": "array",
            "maxItems": MAX_STEPS,
            "items": {
                "type": "object",
                "properties": {
                    "tool": {"type": "string"},
                    "operation": {"type": "string"},
                    "params": {"type": "object"},
                    "why": {"type": "string"},
                    "on_failure": {"type": "string", "enum": [str(choice) for choice in OnFailure]},
                    "expect": {"type": "string"},
                },
                "required": ["tool", "operation", "params"],
            },
        },
    },
    "required": ["steps"],
}
VERDICT_SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {"met": {"type": "boolean"}, "missing": {"type": "string"}, "answer": {"type": "string"}},
    "required": ["met", "missing", "answer"],
}
_CUT_OFF = "the reply was cut off because it was too long: plan fewer steps, with shorter parameters"


class PlanStopped(ModelError):
    """No plan can be carried out any further; `stop` is why the run ends."""

    def __init__(self, message: str, *, stop: StopReason = StopReason.PLAN_FAILED) -> None:
        super().__init__(message)
        self.stop = stop


class Planner:
    """One model's plans for one run. What it is asked and says becomes part of the history and of the log.

    Args:
        parts: What the run is made of.
        operations: What plans are made of.
        max_calls: How many replies there may be.
    """

    def __init__(self, parts: RunParts, operations: Operations, *, max_calls: int = 1) -> None:
        self._parts = parts
        self._history = parts.history
        self._operations = operations
        self._calls_left = max_calls
        self._request = UserMessage(content="")

    async def plan(self, *, step: int, sampling: Sampling, reason: str, done: str) -> tuple[Plan, ModelReply]:
        """A plan each of whose steps is a valid, permitted call, and the reply it stands in, which is not kept yet.

        Args:
            step: Which step of the run this is for, in the log.
            sampling: How the model samples.
            reason: Why the plan before no longer holds; empty for the first.
            done: What became of its steps.

        Raises:
            PlanStopped: The last correction was wrong too, or a limit is reached.
            ModelError: The model gave no reply.
        """
        request = rendered(
            "plan",
            reason=reason,
            done=done or "none",
            operations=self._operations.signatures(),
            others=self._operations.others(),
            most=MAX_STEPS,
        )
        self._say(request, step=step)
        problems: tuple[str, ...] = ()
        for correction in range(MAX_CORRECTIONS + 1):
            if correction:
                self._say(rendered("plan_problems", problems=problems), step=step)
            reply = await self._ask(PLAN_SCHEMA, step=step, sampling=sampling)
            plan, problems = self._operations.read(reply.message.content)
            if not problems:
                return plan, reply
            if reply.finish_reason == "length":
                problems = (_CUT_OFF, *problems)
            self.keep(reply, step=step)
        raise PlanStopped(f"no plan that can be carried out: {'; '.join(problems)}")

    async def outline(self) -> None:
        """Have a plan in a few lines of text put into the conversation, for an agent that chooses each next step.

        Raises PlanStopped, ModelError.
        """
        tools = [line.partition("(")[0] for line in self._operations.signatures()]
        self._say(rendered("plan_outline", tools=tools, most=OUTLINE_LINES), step=1)
        self.keep(await self._ask(None, step=1, sampling=self._parts.sampling), step=1)
        self._say(GO, step=1)

    async def verdict(self, *, step: int, sampling: Sampling, goal: str, steps: str) -> tuple[Verdict, ModelReply]:
        """Whether the goal is met by what was done, and the reply that says so, which is not kept yet.

        Raises PlanStopped, ModelError.
        """
        self._say(rendered("plan_verify", goal=goal, steps=steps), step=step)
        reply = await self._ask(VERDICT_SCHEMA, step=step, sampling=sampling)
        return read_verdict(reply.message.content), reply

    def keep(self, reply: ModelReply, *, step: int) -> None:
        """Make a reply that carries no call part of the conversation: recorded and paid for."""
        self._parts.budget.settle(reply.usage)
        self._history.told(reply.usage)
        self._parts.post(ModelReplied(step=step, reply=reply, duration_ms=reply.usage.duration_ms))
        self._history.add(reply.message)

    async def _ask(self, schema: Mapping[str, object] | None, *, step: int, sampling: Sampling) -> ModelReply:
        parts = self._parts
        if self._calls_left <= 0:
            raise PlanStopped("the limit of model replies is reached", stop=StopReason.MAX_ITERATIONS)
        if (spent := parts.budget.spent(iterations=0)) not in (None, StopReason.MAX_TOOL_CALLS):
            raise PlanStopped(f"the run stopped: {spent}", stop=spent)
        self._calls_left -= 1
        while True:
            try:
                reply = await parts.model.reply(
                    ModelRequest(self._history.messages, (), sampling, schema=schema, on_delta=parts.on_delta)
                )
                break
            except ContextTooLong:
                condensed = await self._history.shrink(step=step)
                if condensed is None:
                    raise
                parts.post(condensed)
                if not any(message is self._request for message in self._history.messages):
                    # What is asked now may have been given up with what was said before.
                    self._say(self._request.content, step=step)
        if reply.finish_reason == "content_filter":
            self.keep(reply, step=step)
            raise PlanStopped("the model refused to go on", stop=StopReason.MODEL_STOPPED)
        return reply

    def _say(self, text: str, *, step: int) -> None:
        self._request = UserMessage(content=text)
        self._history.add(self._request)
        self._parts.post(MessageAdded(step=step, message=self._request))
