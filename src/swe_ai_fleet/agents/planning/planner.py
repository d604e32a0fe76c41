"""The planner: it asks a model for a plan, and rejects plans that cannot be executed.

Each step of an accepted plan is a valid call of an operation that the policy permits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from swe_ai_fleet.agents.agent_run import RunParts
from swe_ai_fleet.agents.planning.reading import StepVerdict, read_draft, read_verdict
from swe_ai_fleet.agents.prompting import rendered
from swe_ai_fleet.agents.repair.argument_coercion import coerce_arguments
from swe_ai_fleet.agents.repair.names import Alias, NameReading, OperationNames
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER, Toolbox
from swe_ai_fleet.domain.errors import FleetError, ModelError
from swe_ai_fleet.domain.event import MessageAdded, ModelReplied
from swe_ai_fleet.domain.message import ModelReply, Sampling, UserMessage
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.domain.trajectory import OnFailure, Plan, PlanStep, StopReason
from swe_ai_fleet.tools.definition import Definition
from swe_ai_fleet.tools.operation import Toolkit, signature

MAX_STEPS = 50
_MOST_PROBLEMS = 12
_MOST_OTHERS = 60
OUTLINE_LINES = 8
MAX_CORRECTIONS = 2
"""How often the model may correct a plan with mistakes."""
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


class Operations:
    """The operations of a toolbox that its policy permits, including those not offered to the model at first."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._permitted: dict[str, tuple[Toolkit, Definition]] = {
            definition.spec.name: (toolkit, definition)
            for toolkit in toolbox.toolkits.values()
            for definition in toolkit.definitions.values()
            if toolkit.pipeline.policy.offers(definition.spec)
        }
        self._shown = {spec.name for spec in toolbox.specs if spec.name in self._permitted}
        self._names = OperationNames((*self.specs, FINAL_ANSWER))

    @property
    def specs(self) -> tuple[OperationSpec, ...]:
        return tuple(definition.spec for _, definition in self._permitted.values())

    def __contains__(self, name: object) -> bool:
        return name in self._permitted

    def spec(self, step: PlanStep) -> OperationSpec | None:
        for _, definition in self._permitted.values():
            if (definition.spec.tool, definition.spec.operation) == (step.tool, step.operation):
                return definition.spec
        return None

    def signatures(self) -> list[str]:
        """A line for each operation offered to the model: its signature and what it does."""
        specs = (self._permitted[name][1].spec for name in sorted(self._shown))
        return [f"{signature(spec)}: {spec.description.partition(chr(10))[0]}" for spec in specs]

    def hidden_names(self) -> list[str]:
        """The names of the other permitted operations."""
        return sorted(self._permitted.keys() - self._shown)[:_MOST_OTHERS]

    def read(self, text: str) -> tuple[Plan, tuple[str, ...]]:
        """The plan in a model's reply, and its problems; without any, it can be executed."""
        draft = read_draft(text)
        problems = list(draft.problems)
        steps: list[PlanStep] = []
        for number, drafted in draft.steps:
            step = self.checked(drafted)
            if isinstance(step, str):
                problems.append(f"step {number}: {step}")
            elif step is not None:
                steps.append(step)
        if len(steps) > MAX_STEPS:
            problems.append(f"it has {len(steps)} steps; {MAX_STEPS} are allowed")
        if len(problems) > _MOST_PROBLEMS:
            problems[_MOST_PROBLEMS:] = [f"and {len(problems) - _MOST_PROBLEMS} problems more"]
        return Plan(steps=tuple(steps), reasoning=draft.reasoning), tuple(problems)

    def checked(self, drafted: PlanStep) -> PlanStep | str | None:
        """The step as it will be executed, or its problem; None for a final answer, which a plan cannot know."""
        reading = self._read_name(drafted)
        if reading.name == FINAL_ANSWER.name:
            return None
        if reading.name not in self._permitted:
            name = f"{drafted.tool} {drafted.operation}".strip()[:80]
            near = [name for name in reading.near if name in self._permitted]
            guess = (
                f" Did you mean {' or '.join(signature(self._permitted[name][1].spec) for name in near[:2])}?"
                if near
                else ""
            )
            return f"there is no operation {name!r}.{guess}"
        toolkit, definition = self._permitted[reading.name]
        spec = definition.spec
        try:
            params = coerce_arguments(drafted.params, spec, reading.alias)[0]
            json.dumps(params, allow_nan=False)
            checked = definition.validate(params)
        except FleetError as error:
            hint = "" if "Signature:" in error.message else f" Signature: {signature(spec)}"
            return f"{spec.name}: {error.message}{hint}"
        except ValueError:
            return f"{spec.name}: the params are not plain JSON. Signature: {signature(spec)}"
        if refusal := toolkit.pipeline.policy.refusal(spec, checked):
            return f"{spec.name}: {refusal}"
        return replace(drafted, tool=spec.tool, operation=spec.operation, params=params)

    def _read_name(self, drafted: PlanStep) -> NameReading:
        tool, operation = drafted.tool.strip(), drafted.operation.strip()
        written = [f"{tool}_{operation}", operation, tool] if tool and operation else [tool or operation]
        for name in written:
            if name in self._permitted or name == FINAL_ANSWER.name:
                return NameReading(name=name)
        readings = [
            self._names.read(name, lambda name, alias: self._fits(name, drafted.params, alias)) for name in written
        ]
        return next((reading for reading in readings if reading.name), readings[0])

    def _fits(self, name: str, params: Mapping[str, object], alias: Alias | None) -> bool:
        if name not in self._permitted:
            return False
        definition = self._permitted[name][1]
        try:
            definition.validate(coerce_arguments(params, definition.spec, alias)[0])
        except FleetError:
            return False
        return True


class PlanStopped(ModelError):
    """Planning cannot continue; `stop` is the stop reason of the run."""

    def __init__(self, message: str, *, stop: StopReason = StopReason.PLAN_FAILED) -> None:
        super().__init__(message)
        self.stop = stop


class Planner:
    """Asks a model for the plans of one run. Requests and replies become part of the history and of the log."""

    def __init__(self, parts: RunParts, operations: Operations, *, max_calls: int = 1) -> None:
        self._parts = parts
        self._history = parts.history
        self._operations = operations
        self._calls_left = max_calls
        self._request = UserMessage(content="")

    async def plan(self, *, step: int, sampling: Sampling, reason: str, done: str) -> tuple[Plan, ModelReply]:
        """A plan of valid, permitted calls, and the reply with it, which the caller must `keep`.

        `reason` is why the previous plan no longer works; empty for the first. Raises PlanStopped if the last
        correction has mistakes too, or a limit is reached, ModelError.
        """
        request = rendered(
            "plan",
            reason=reason,
            done=done or "none",
            operations=self._operations.signatures(),
            others=self._operations.hidden_names(),
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
        """Add a plan in a few lines of text to the conversation, for an agent that works step by step.

        Raises PlanStopped, ModelError.
        """
        tools = [line.partition("(")[0] for line in self._operations.signatures()]
        self._say(rendered("plan_outline", tools=tools, most=OUTLINE_LINES), step=1)
        self.keep(await self._ask(None, step=1, sampling=self._parts.sampling), step=1)
        self._say(GO, step=1)

    async def verdict(self, *, step: int, sampling: Sampling, goal: str, steps: str) -> tuple[StepVerdict, ModelReply]:
        """Whether the executed steps meet the goal, and the reply with that verdict, which the caller must `keep`.

        Raises PlanStopped, ModelError.
        """
        self._say(rendered("plan_verify", goal=goal, steps=steps), step=step)
        reply = await self._ask(VERDICT_SCHEMA, step=step, sampling=sampling)
        return read_verdict(reply.message.content), reply

    def keep(self, reply: ModelReply, *, step: int) -> None:
        """Add a reply without calls to the conversation, record it, and charge it to the budget."""
        self._parts.budget.settle(reply.usage)
        self._history.count_prompt(reply.usage)
        self._parts.post(ModelReplied(step=step, reply=reply, duration_ms=reply.usage.duration_ms))
        self._history.add(reply.message)

    async def _ask(self, schema: Mapping[str, object] | None, *, step: int, sampling: Sampling) -> ModelReply:
        parts = self._parts
        if self._calls_left <= 0:
            raise PlanStopped("the limit of model replies is reached", stop=StopReason.MAX_ITERATIONS)
        if (spent := parts.budget.spent(iterations=0)) not in (None, StopReason.MAX_TOOL_CALLS):
            raise PlanStopped(f"the run stopped: {spent}", stop=spent)
        self._calls_left -= 1

        def ask_again() -> None:
            # Condensing may have dropped the current request.
            if not any(message is self._request for message in self._history.messages):
                self._say(self._request.content, step=step)

        reply = await parts.reply((), sampling, step=step, schema=schema, on_shrunk=ask_again)
        # No tool was offered, so a call is not run, and a call without a result must not be in a conversation.
        reply = replace(reply, message=replace(reply.message, tool_calls=()))
        if reply.finish_reason == "content_filter":
            self.keep(reply, step=step)
            raise PlanStopped("the model refused to go on", stop=StopReason.MODEL_STOPPED)
        return reply

    def _say(self, text: str, *, step: int) -> None:
        self._request = UserMessage(content=text)
        self._history.add(self._request)
        self._parts.post(MessageAdded(step=step, message=self._request))
