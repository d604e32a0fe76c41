"""The tools of one agent run: which are offered to the model, and how its calls are run.

Few operations are offered at first, more when the model asks for them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from swe_ai_fleet.agents.repair.names import OperationNames
from swe_ai_fleet.agents.repair.reading import CallReader, Understood
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.json_values import is_strings
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.domain.trajectory import Observation
from swe_ai_fleet.tools.builtin import ANSWER_KEYS, answer_text
from swe_ai_fleet.tools.definition import Definition
from swe_ai_fleet.tools.operation import Toolkit, signature
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.policy import Policy

REQUEST_TOOLS = "request_tools"
_MOST_NAMES = 50
_MOST_LISTED = 120
FINAL_ANSWER = OperationSpec(
    name="final_answer",
    tool="final_answer",
    operation="final_answer",
    description="End the task: it is done and checked, or it cannot be done.",
    parameters={
        "type": "object",
        "properties": {
            "result": {
                "type": "string",
                "description": "What was changed and how it was checked. The first sentence heads the commit.",
            }
        },
        "required": ["result"],
        "additionalProperties": False,
    },
    read_only=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCall:
    """A call as it would be run: its operation, and its arguments after every repair."""

    spec: OperationSpec
    arguments: Mapping[str, object]


class CallVerdict(StrEnum):
    """Run the call; refuse it and tell the model why; wait for a person; end the run."""

    GO = "go"
    REFUSE = "refuse"
    WAIT = "wait"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The decision about one call. `text` is the answer to a refused call, and precedes the result of any other."""

    verdict: CallVerdict = CallVerdict.GO
    text: str = ""


class ApprovalGate(Protocol):
    """Decides about the calls of a reply before any of them is run."""

    async def review(self, calls: Sequence[ToolCall], *, step: int, truncated: bool = False) -> Sequence[Ruling]:
        """One ruling a call. If a call must wait, its approval request is durable in the log when this returns."""
        ...


class ToolOffer:
    """The tool schemas sent with each request. The list only grows at its end, which keeps a server's prefix cache.

    `idle` operations are offered once the model asks for them; `request_tools` lists them, except `unlisted` ones,
    which lack something they need here.
    """

    def __init__(
        self,
        specs: Sequence[OperationSpec],
        policy: Policy,
        *,
        answer: OperationSpec,
        idle: Collection[str] = frozenset(),
        unlisted: Collection[str] = frozenset(),
    ) -> None:
        self._allowed: dict[str, OperationSpec] = {spec.name: spec for spec in specs if policy.offers(spec)}
        hidden = [spec for name, spec in self._allowed.items() if name in idle]
        listed = [spec for spec in hidden if spec.name not in unlisted]
        offered = [spec for name, spec in self._allowed.items() if name not in idle]
        self.request: OperationSpec | None = None
        if hidden and policy.offers(request := _request_spec(listed)):
            self.request = request
            offered.append(request)
        self.specs: tuple[OperationSpec, ...] = (*offered, answer)
        self._names = OperationNames(self._allowed.values())

    def show(self, arguments: Mapping[str, object]) -> ToolResult:
        """Offer the operations of these `names` from the next request on; a toolkit's name means all its operations."""
        names = arguments.get("names")
        if not is_strings(names) or not names:
            error = f"names must be a list of names. Signature: {signature(self.request or _request_spec(()))}"
            return ToolResult(success=False, operation=REQUEST_TOOLS, error=error, outcome=Outcome.INVALID)
        lines: list[str] = []
        any_found = False
        for name in names[:_MOST_NAMES]:
            specs, line = self._matching_specs(name)
            any_found = any_found or bool(specs)
            lines += [self._display_name(spec) for spec in specs] or [line]
        if len(names) > _MOST_NAMES:
            lines.append(f"Only the first {_MOST_NAMES} names were looked at.")
        text = "\n".join(dict.fromkeys(lines))
        if not any_found:
            return ToolResult(success=False, operation=REQUEST_TOOLS, error=text, outcome=Outcome.INVALID)
        return ToolResult(success=True, operation=REQUEST_TOOLS, content=text)

    def _matching_specs(self, name: str) -> tuple[list[OperationSpec], str]:
        reading = self._names.read(name, lambda _name, _alias: False)
        if reading.name:
            return [self._allowed[reading.name]], ""
        kit = [spec for spec in self._allowed.values() if spec.tool == name.strip().lower() != ""]
        near = [each for each in reading.near if each in self._allowed]
        guess = f" Did you mean {' or '.join(near)}?" if near else ""
        return kit, f"There is no tool {name[:64]!r} for this run.{guess}"

    def _display_name(self, spec: OperationSpec) -> str:
        if spec in self.specs:
            return f"{spec.name} is shown already."
        self.specs = (*self.specs, spec)
        return f"{signature(spec)}: {first_line(spec)}"


def first_line(spec: OperationSpec) -> str:
    return spec.description.strip().partition("\n")[0]


def _request_spec(listed: Sequence[OperationSpec]) -> OperationSpec:
    names = [spec.name for spec in listed[:_MOST_LISTED]]
    names += [f"and {len(listed) - _MOST_LISTED} more"] if len(listed) > _MOST_LISTED else []
    return OperationSpec(
        name=REQUEST_TOOLS,
        tool=REQUEST_TOOLS,
        operation=REQUEST_TOOLS,
        description=f"Show what more tools do: {', '.join(names)}",
        parameters={
            "type": "object",
            "properties": {"names": {"type": "array", "items": {"type": "string"}}},
            "required": ["names"],
            "additionalProperties": False,
        },
        read_only=True,
    )


def final_answer_in(schema: Mapping[str, object]) -> OperationSpec:
    """`final_answer` for a run whose result is an object of this JSON schema instead of a few sentences."""
    result = dict(schema)
    # References in a schema start at its root, so the definitions must be there.
    definitions = {"$defs": result.pop("$defs")} if "$defs" in result else {}
    parameters = {**definitions, **FINAL_ANSWER.parameters, "properties": {"result": result}}
    return replace(FINAL_ANSWER, description="End with your result. Call it once.", parameters=parameters)


class Toolbox:
    """The operations of some toolkits that the policy allows, `request_tools` for more, and `final_answer`.

    The toolkits, by name, share `pipeline`. Calls of `idle` operations are run like any other. With `bare_answers`,
    the arguments of `final_answer` may be plain text instead of an object.
    """

    def __init__(
        self,
        toolkits: Mapping[str, Toolkit],
        pipeline: Pipeline,
        *,
        idle: Collection[str] = frozenset(),
        unlisted: Collection[str] = frozenset(),
        parallel: bool = True,
        answer: OperationSpec = FINAL_ANSWER,
        bare_answers: bool = True,
    ) -> None:
        self.toolkits = toolkits
        self._pipeline = pipeline
        self._answer = answer
        self._parallel = parallel
        self._operations: dict[str, tuple[Toolkit, Definition]] = {
            definition.spec.name: (toolkit, definition)
            for toolkit in toolkits.values()
            for definition in toolkit.definitions.values()
        }
        specs = [definition.spec for _, definition in self._operations.values()]
        self._offer = ToolOffer(specs, pipeline.policy, answer=answer, idle=idle, unlisted=unlisted)
        ours = (answer,) if self._offer.request is None else (answer, self._offer.request)
        self._reader = CallReader((*specs, *ours), answer=answer.name, bare_answers=bare_answers)

    @property
    def specs(self) -> tuple[OperationSpec, ...]:
        """The operations offered to the model; the list grows at its end when the model asks for more."""
        return self._offer.specs

    def understand(self, call: ToolCall, *, truncated: bool = False) -> Understood:
        """The operation and arguments that a call means; `call_all` runs it with the same."""
        return self._reader.read(call, truncated=truncated)

    def preview(self, call: ToolCall, truncated: bool) -> ReadCall | None:
        """The call as it would be run; None if it would be refused, or is one of the loop's own tools."""
        understood = self.understand(call, truncated=truncated)
        if understood.spec is None or understood.error or understood.spec.name not in self._operations:
            return None
        definition = self._operations[understood.spec.name][1]
        try:
            arguments = definition.validate(understood.arguments)
        except FleetError:
            return None
        refused = self._pipeline.policy.refusal(definition.spec, arguments)
        return None if refused else ReadCall(spec=definition.spec, arguments=arguments)

    async def call_all(
        self, calls: Sequence[ToolCall], *, refusals: Mapping[str, str] | None = None, truncated: bool = False
    ) -> tuple[Observation, ...]:
        """Run the calls of one reply, concurrently where possible; observations in the calls' order.

        A call waits for earlier calls that lock the same resource, unless both only read: the effect is that of the
        order the model wrote. A failing call cancels no other. `refusals` are answers, by call id, to calls that are
        not run.
        """
        read = [self.understand(call, truncated=truncated) for call in calls]
        if len(read) == 1:
            return (await self._after((), read[0], (refusals or {}).get(calls[0].call_id)),)
        tasks: list[asyncio.Task[Observation]] = []
        async with asyncio.TaskGroup() as group:
            for number, understood in enumerate(read):
                refusal = (refusals or {}).get(understood.call.call_id)
                reaches = () if refusal is not None else range(number)
                before = [tasks[i] for i in reaches if self._conflict(read[i], understood)]
                tasks.append(group.create_task(self._after(before, understood, refusal)))
        return tuple(task.result() for task in tasks)

    async def _after(
        self, before: Sequence[asyncio.Task[Observation]], understood: Understood, refusal: str | None
    ) -> Observation:
        call_id, spec, arguments = understood.call.call_id, understood.spec, understood.arguments
        if refusal is not None:
            result = self._reject(understood, refusal, Outcome.REFUSED)
        else:
            if before:
                await asyncio.wait(before)
            if spec is None or understood.error or spec is self._answer or spec is self._offer.request:
                result = self._answered(understood)
            else:
                toolkit, definition = self._operations[spec.name]
                result = await self._pipeline.call(definition, toolkit, arguments, call_id=call_id)
        return Observation(call_id=call_id, result=result, repairs=understood.repairs)

    def _answered(self, understood: Understood) -> ToolResult:
        spec, arguments = understood.spec, understood.arguments
        if spec is None:
            return self._reject(understood, self._unknown(understood))
        if understood.error:
            return self._reject(understood, understood.error)
        if spec is self._answer:
            return self._final_answer(arguments)
        record = self._pipeline.trail.open(spec, arguments={}, secret=arguments, call_id=understood.call.call_id)
        result = self._offer.show(arguments)
        return record.close(result, reason=result.error)

    def _reject(self, understood: Understood, error: str, outcome: Outcome = Outcome.INVALID) -> ToolResult:
        call = understood.call
        name = understood.spec.name if understood.spec else well_formed(call.name)[:64]
        spec = understood.spec or replace(FINAL_ANSWER, name="unknown", tool="unknown", operation=name)
        arguments = {"raw": call.arguments[:1000]}
        record = self._pipeline.trail.open(spec, arguments={}, secret=arguments, call_id=call.call_id)
        refused = PolicyDecision.REFUSED if outcome is Outcome.REFUSED else PolicyDecision.ALLOWED
        error = well_formed(error)
        result = ToolResult(success=False, operation=name, error=error, outcome=outcome)
        return record.close(result, refused, error)

    def _unknown(self, understood: Understood) -> str:
        names = [spec.name for spec in self.specs]
        near = [signature(self._operations[name][1].spec) for name in understood.near if name in self._operations]
        near += [signature(self._answer)] if self._answer.name in understood.near else []
        guess = f" Did you mean {' or '.join(near)}?" if near else ""
        more = f" {self._offer.request.name} shows more." if self._offer.request else ""
        return f"{understood.error}.{guess} The tools are: {', '.join(names)}.{more}"

    def _conflict(self, call: Understood, other: Understood) -> bool:
        if call.spec is None or other.spec is None:
            return False
        a, b = call.spec, other.spec
        if not self._parallel or self._answer in (a, b):
            return True
        return bool(a.locks & b.locks) and not (a.read_only and b.read_only)

    def _final_answer(self, arguments: Mapping[str, object]) -> ToolResult:
        """The result of `final_answer`, under any of the usual keys; as JSON if its schema is an object's."""
        value = next((arguments[key] for key in ANSWER_KEYS if arguments.get(key) is not None), None)
        if value is None:
            error = f"final_answer needs its result. Signature: {signature(self._answer)}"
            return ToolResult(success=False, operation=self._answer.name, error=error, outcome=Outcome.INVALID)
        in_a_form = self._answer is not FINAL_ANSWER and not isinstance(value, str)
        content = json.dumps(value, ensure_ascii=False) if in_a_form else answer_text(value)
        return ToolResult(success=True, operation=self._answer.name, content=content)
