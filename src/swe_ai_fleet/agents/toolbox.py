"""The tools one agent run holds: what is offered to the model, and how its calls are carried out."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, cast

from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.tool import Decision, OperationSpec, Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import Observation
from swe_ai_fleet.tools.builtin.dialogue import ANSWER_KEYS, answer_text
from swe_ai_fleet.tools.operation import Definition, Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline

FINAL_ANSWER = OperationSpec(
    name="final_answer",
    tool="final_answer",
    operation="final_answer",
    description="End the task. Call it once, when the work is done and checked, or when it cannot be done.",
    parameters={
        "type": "object",
        "properties": {
            "result": {"type": "string", "description": "What was changed and how it was checked, in a few sentences."}
        },
        "required": ["result"],
        "additionalProperties": False,
    },
    read_only=True,
)


class Toolbox:
    """The operations of some toolkits that policy lets this run see, and `final_answer`.

    Args:
        toolkits: By name; all must share `pipeline`.
        pipeline: The way every call goes.
        idle: Names of operations that the model is not shown; a call by name is carried out like any other.
    """

    def __init__(
        self, toolkits: Mapping[str, Toolkit], pipeline: Pipeline, *, idle: Collection[str] = frozenset()
    ) -> None:
        self.toolkits = toolkits
        self._pipeline = pipeline
        self._operations: dict[str, tuple[Toolkit, Definition]] = {
            definition.spec.name: (toolkit, definition)
            for toolkit in toolkits.values()
            for definition in toolkit.definitions.values()
        }
        specs = [found.spec for name, (_, found) in self._operations.items() if name not in idle]
        self.specs: tuple[OperationSpec, ...] = (
            *(spec for spec in specs if pipeline.policy.offers(spec)),
            FINAL_ANSWER,
        )

    async def call_all(
        self, calls: Sequence[ToolCall], *, refusals: Mapping[str, str] | None = None, truncated: bool = False
    ) -> tuple[Observation, ...]:
        """Carry out the calls of one reply, concurrently where they allow it; observations in the calls' order.

        A call waits for those before it that hold a resource it locks, unless both only read: the effect is that of
        the order the model wrote. A failing call cancels no other.

        Args:
            calls: What the model asked for.
            refusals: By call id, why a call is not carried out but answered with that.
            truncated: The reply was cut off, so arguments that end too early must not be mended.
        """
        tasks: list[asyncio.Task[Observation]] = []
        async with asyncio.TaskGroup() as group:
            for number, call in enumerate(calls):
                before = [tasks[i] for i in range(number) if self._conflict(calls[i], call)]
                tasks.append(group.create_task(self._after(before, call, (refusals or {}).get(call.call_id, ""))))
        return tuple(task.result() for task in tasks)

    async def _after(self, before: Sequence[asyncio.Task[Observation]], call: ToolCall, refusal: str) -> Observation:
        if refusal:
            return Observation(call_id=call.call_id, result=self._reject(call, refusal, Outcome.REFUSED))
        if before:
            await asyncio.wait(before)
        return Observation(call_id=call.call_id, result=await self._call(call))

    async def _call(self, call: ToolCall) -> ToolResult:
        try:
            arguments = parse_arguments(call.arguments)
        except ValueError as error:
            return self._reject(call, f"the arguments of {call.name} are not a JSON object: {error}")
        if call.name == FINAL_ANSWER.name:
            return _final_answer(arguments)
        found = self._operations.get(call.name)
        if found is None:
            return self._reject(call, self._unknown(call.name))
        toolkit, definition = found
        return await self._pipeline.call(definition, toolkit, arguments, call_id=call.call_id)

    def _reject(self, call: ToolCall, error: str, outcome: Outcome = Outcome.INVALID) -> ToolResult:
        """An audited observation for a call that reached no operation."""
        found = self._operations.get(call.name)
        nameless = replace(FINAL_ANSWER, name="unknown", tool="unknown", operation=call.name[:64])
        spec = found[1].spec if found else nameless
        arguments = {"raw": call.arguments[:1000]}
        record = self._pipeline.trail.open(spec, arguments={}, secret=arguments, call_id=call.call_id)
        refused = Decision.REFUSED if outcome is Outcome.REFUSED else Decision.ALLOWED
        result = ToolResult(success=False, operation=call.name[:64], error=error, outcome=outcome)
        return record.close(result, refused, error)

    def _unknown(self, name: str) -> str:
        names = [spec.name for spec in self.specs]
        close = difflib.get_close_matches(name[:64], names, n=1)
        guess = f" Did you mean {close[0]}?" if close else ""
        return f"there is no tool {name[:64]!r}.{guess} The tools are: {', '.join(names)}"

    def _conflict(self, one: ToolCall, other: ToolCall) -> bool:
        if FINAL_ANSWER.name in (one.name, other.name):
            return True
        first, second = self._operations.get(one.name), self._operations.get(other.name)
        if first is None or second is None:
            return False
        a, b = first[1].spec, second[1].spec
        return bool(a.locks & b.locks) and not (a.read_only and b.read_only)


def parse_arguments(text: str) -> dict[str, object]:
    """The arguments a model wrote. Raises ValueError saying what is wrong with the text.

    NaN and the infinities, which JSON does not have, are refused; control characters inside strings are accepted.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}")
    return cast("dict[str, object]", value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _final_answer(arguments: Mapping[str, object]) -> ToolResult:
    """The answer under whichever of the usual keys the model chose."""
    value = next((arguments[key] for key in ANSWER_KEYS if arguments.get(key) is not None), None)
    if value is None:
        error = "final_answer needs its text. Signature: final_answer(result: string)"
        return ToolResult(success=False, operation=FINAL_ANSWER.name, error=error, outcome=Outcome.INVALID)
    return ToolResult(success=True, operation=FINAL_ANSWER.name, content=answer_text(value))
