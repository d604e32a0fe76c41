"""Asks a model for a plan, and does not take one that cannot be carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.planning.operations import MAX_STEPS, Operations
from swe_ai_fleet.agents.planning.reading import Verdict, read_verdict
from swe_ai_fleet.domain.errors import ContextTooLong, ModelError
from swe_ai_fleet.domain.event import EventBody, MessageAdded, ModelReplied
from swe_ai_fleet.domain.message import ModelReply, ModelRequest, Sampling, UserMessage
from swe_ai_fleet.domain.plan import OnFailure, Plan
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import ChatModel, Journal

OUTLINE_LINES = 8
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

    def __init__(
        self, message: str, *, field: str = "", hint: str = "", stop: StopReason = StopReason.PLAN_FAILED
    ) -> None:
        super().__init__(message, field=field, hint=hint)
        self.stop = stop


class Planner:
    """One model's plans for one run. What it is asked and says becomes part of the history and of the log.

    Args:
        model: Who is asked.
        operations: What plans are made of.
        history: The conversation so far; the task stands in it.
        budget: What each reply is paid from, and what limits how many there can be.
        journal: Where replies are recorded.
        max_calls: How many replies there may be.
        max_corrections: How often a plan with mistakes goes back to the model.
    """

    def __init__(
        self,
        *,
        model: ChatModel,
        operations: Operations,
        history: History,
        budget: Budget,
        journal: Journal | None = None,
        max_calls: int = 100,
        max_corrections: int = 2,
    ) -> None:
        self._model = model
        self._operations = operations
        self._history = history
        self._budget = budget
        self._journal = journal
        self._max_corrections = max_corrections
        self._calls_left = max_calls
        self._request = UserMessage(content="")

    async def plan(
        self,
        *,
        step: int,
        sampling: Sampling,
        reason: str = "",
        done: str = "",
        on_delta: Callable[[str], None] | None = None,
    ) -> tuple[Plan, ModelReply]:
        """A plan each of whose steps is a valid, permitted call, and the reply it stands in, which is not kept yet.

        Args:
            step: Which step of the run this is for, in the log.
            sampling: How the model samples.
            reason: Why the plan before no longer holds; empty for the first.
            done: What became of its steps.
            on_delta: Hears the text as it comes in.

        Raises:
            PlanStopped: The last correction was wrong too, or a limit is reached.
            ModelError: The model gave no reply.
        """
        request = _render(
            "plan.md.j2",
            reason=reason,
            done=done or "none",
            operations=self._operations.signatures(),
            others=self._operations.others(),
            most=MAX_STEPS,
        )
        self._say(request, step=step)
        problems: tuple[str, ...] = ()
        for correction in range(self._max_corrections + 1):
            if correction:
                self._say(_render("plan_problems.md.j2", problems=problems), step=step)
            reply = await self._ask(PLAN_SCHEMA, step=step, sampling=sampling, on_delta=on_delta)
            plan, problems = self._operations.read(reply.message.content)
            if not problems:
                return plan, reply
            if reply.finish_reason == "length":
                problems = (_CUT_OFF, *problems)
            self.keep(reply, step=step)
        raise PlanStopped(f"no plan that can be carried out: {'; '.join(problems)}")

    async def outline(self, *, sampling: Sampling, on_delta: Callable[[str], None] | None = None) -> None:
        """Have a plan in a few lines of text put into the conversation, for an agent that chooses each next step.

        Raises PlanStopped, ModelError.
        """
        tools = [line.partition("(")[0] for line in self._operations.signatures()]
        self._say(_render("plan_outline.md.j2", tools=tools, most=OUTLINE_LINES), step=1)
        self.keep(await self._ask(None, step=1, sampling=sampling, on_delta=on_delta), step=1)
        self._say(GO, step=1)

    async def verdict(
        self,
        *,
        step: int,
        sampling: Sampling,
        goal: str,
        steps: str,
        on_delta: Callable[[str], None] | None = None,
    ) -> tuple[Verdict, ModelReply]:
        """Whether the goal is met by what was done, and the reply that says so, which is not kept yet.

        Raises PlanStopped, ModelError.
        """
        self._say(_render("plan_verify.md.j2", goal=goal, steps=steps), step=step)
        reply = await self._ask(VERDICT_SCHEMA, step=step, sampling=sampling, on_delta=on_delta)
        return read_verdict(reply.message.content), reply

    def keep(self, reply: ModelReply, *, step: int) -> None:
        """Make a reply that carries no call part of the conversation: recorded and paid for."""
        self._budget.settle(reply.usage)
        self._history.told(reply.usage)
        self._post(ModelReplied(step=step, reply=reply, duration_ms=reply.usage.duration_ms))
        self._history.add(reply.message)

    async def _ask(
        self,
        schema: Mapping[str, object] | None,
        *,
        step: int,
        sampling: Sampling,
        on_delta: Callable[[str], None] | None,
    ) -> ModelReply:
        if self._calls_left <= 0:
            raise PlanStopped("the limit of model replies is reached", stop=StopReason.MAX_ITERATIONS)
        if (spent := self._budget.spent(iterations=0)) not in (None, StopReason.MAX_TOOL_CALLS):
            raise PlanStopped(f"the run stopped: {spent}", stop=spent)
        self._calls_left -= 1
        while True:
            try:
                reply = await self._model.reply(
                    ModelRequest(self._history.messages, (), sampling, schema=schema, on_delta=on_delta)
                )
                break
            except ContextTooLong:
                condensed = await self._history.shrink(step=step)
                if condensed is None:
                    raise
                self._post(condensed)
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
        self._post(MessageAdded(step=step, message=self._request))

    def _post(self, body: EventBody) -> None:
        if self._journal is not None:
            self._journal.post(body)


def _render(template: str, **values: object) -> str:
    return _templates().get_template(template).render(**values).strip()


@cache
def _templates() -> Templates:
    return Templates(
        loader=PackageLoader("swe_ai_fleet.agents", "prompts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - prompts are plain text, not HTML
    )
