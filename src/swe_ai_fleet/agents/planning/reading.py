"""Reading a model's plan or verdict, as leniently as is safe."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from swe_ai_fleet.agents.repair.arguments import TolerantReader
from swe_ai_fleet.domain.json_values import is_list, is_object, parse_json_at
from swe_ai_fleet.domain.trajectory import OnFailure, PlanStep

_STEPS = ("steps", "plan", "actions", "operations", "tasks", "plansteps")
_REASONING = ("reasoning", "rationale", "thought", "thoughts", "explanation")
_TOOL = ("tool", "toolkit", "toolname")
_OPERATION = ("operation", "function", "action", "op", "method", "name")
_PARAMS = ("params", "parameters", "arguments", "args", "toolinput")
_WHY = ("why", "reason", "purpose", "description", "rationale", "thought")
_ON_FAILURE = ("onfailure", "onerror", "onfail", "iffails")
_EXPECT = ("expect", "expected", "expectation", "expects")
_BOOKKEEPING = ("step", "id", "number", "index", "order", "type", "title")
_FAILURE_WORDS = {
    "": OnFailure.ABORT,
    "stop": OnFailure.ABORT,
    "fail": OnFailure.ABORT,
    "continue": OnFailure.SKIP,
    "ignore": OnFailure.SKIP,
    "re-plan": OnFailure.REPLAN,
}
_MET = ("met", "goalmet", "ismet", "success", "done", "complete", "completed")
_ANSWER = ("answer", "result", "response", "output", "reply", "summary", "finalanswer")
_MISSING = ("missing", "lacks", "todo", "feedback", "reason")
MAX_CHARS = 400_000
# Each place where a JSON value may begin can cost a scan to the end of the text.
_MOST_TRIES = 64
_MOST_LENIENT = 8
_DEEPEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDraft:
    """A plan as it was written: its readable `steps`, not yet checked, and the `problems` of the others."""

    steps: tuple[tuple[int, PlanStep], ...] = ()
    reasoning: str = ""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepVerdict:
    """The verdict of a verification. `met` is None if the reply has no verdict; then the reply is the answer."""

    met: bool | None
    answer: str
    missing: str = ""


def read_draft(text: str) -> PlanDraft:
    """The plan in a reply, without reasoning, fences and prose around it, under any of the usual keys; never raises."""
    for value in _values(text):
        plan = _plan_in(value, _DEEPEST)
        if plan is not None:
            return plan
    return PlanDraft(problems=("the reply is not a JSON object with a list of steps",))


def read_verdict(text: str) -> StepVerdict:
    """The verdict in a reply; a reply without one is the answer as it is. Never raises."""
    for value in _values(text):
        if not is_object(value):
            continue
        fields = _normal(value)
        met = _first(fields, _MET)
        if met is not None or _first(fields, _ANSWER) is not None:
            return StepVerdict(
                met=_truth(met), answer=_text(_first(fields, _ANSWER)), missing=_text(_first(fields, _MISSING))
            )
    return StepVerdict(met=None, answer=_without_reasoning(text).strip())


def _plan_in(value: object, depth: int) -> PlanDraft | None:
    if is_list(value):
        return _draft(value, "") if value and all(_like_step(item) for item in value) else None
    if not is_object(value):
        return None
    fields = _normal(value)
    reasoning = _text(_first(fields, _REASONING))
    for key in _STEPS:
        listed = fields.get(key)
        if isinstance(listed, str):
            listed = next(_values(listed), None)
        if is_list(listed):
            return _draft(listed, reasoning)
    if _like_step(fields):
        return _draft([fields], reasoning)
    if depth:
        for part in fields.values():
            plan = _plan_in(part, depth - 1) if is_object(part) else None
            if plan is not None:
                return plan
    return None


def _draft(items: list[object], reasoning: str) -> PlanDraft:
    steps: list[tuple[int, PlanStep]] = []
    problems: list[str] = []
    for number, item in enumerate(items, start=1):
        step = _step(item)
        if isinstance(step, str):
            problems.append(f"step {number}: {step}")
        else:
            steps.append((number, step))
    return PlanDraft(steps=tuple(steps), reasoning=reasoning, problems=tuple(problems))


def _like_step(item: object) -> bool:
    return is_object(item) and isinstance(_first(_normal(item), (*_TOOL, *_OPERATION)), str | dict)


def _step(item: object) -> PlanStep | str:
    if not is_object(item):
        return f"it is a {type(item).__name__}, not an object with tool, operation and params"
    fields = _normal(item)
    for key in _OPERATION:
        # A call in the shape of the chat API: {"function": {"name": …, "arguments": …}}.
        inner = fields.get(key)
        if is_object(inner):
            del fields[key]
            fields = _normal(inner) | fields
    tool, operation = _first(fields, _TOOL), _first(fields, _OPERATION)
    if not isinstance(tool, str | None) or not isinstance(operation, str | None) or not (tool or operation):
        return "it names no operation"
    params = _first(fields, _PARAMS)
    if isinstance(params, str):
        params = next(_values(params), None) if params.strip() else None
        if params is None and _text(_first(fields, _PARAMS)).strip():
            return "its params are a text that is not a JSON object"
    if params is None:
        reserved = {*_TOOL, *_OPERATION, *_PARAMS, *_WHY, *_ON_FAILURE, *_EXPECT, *_BOOKKEEPING}
        # Small models write the parameters beside the name instead of under a key of their own.
        params = {key: part for key, part in item.items() if _plain(key) not in reserved}
    if not is_object(params):
        return f"its params are a {type(params).__name__}, not an object"
    word = _text(_first(fields, _ON_FAILURE)).strip().lower()
    on_failure = _FAILURE_WORDS.get(word) or next((choice for choice in OnFailure if choice == word), None)
    if on_failure is None:
        return f"on_failure is {word[:40]!r}; it is one of {', '.join(OnFailure)}"
    return PlanStep(
        tool=tool or "",
        operation=operation or "",
        params=params,
        why=_text(_first(fields, _WHY)),
        on_failure=on_failure,
        expect=_text(_first(fields, _EXPECT)).strip(),
    )


def _values(text: str) -> Iterator[object]:
    """The outermost JSON objects and lists in a text, in order; the first ones are read leniently too."""
    text = _without_reasoning(text)[:MAX_CHARS]
    position = 0
    for tries in range(_MOST_TRIES):
        starts = [start for start in (text.find("{", position), text.find("[", position)) if start >= 0]
        if not starts:
            return
        value, end = _decoded(text, min(starts), lenient=tries < _MOST_LENIENT)
        if value is not None:
            yield value
        position = end


def _decoded(text: str, start: int, *, lenient: bool) -> tuple[object, int]:
    for read in (parse_json_at, TolerantReader.value_at)[: 1 + lenient]:
        with suppress(ValueError):
            return read(text, start)
    return None, start + 1


def _without_reasoning(text: str) -> str:
    """The text after the model's reasoning, which may contain drafts."""
    return text.rpartition("</think>")[2]


def _normal(fields: Mapping[str, object]) -> dict[str, object]:
    return {_plain(key): value for key, value in fields.items()}


def _plain(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "").replace(" ", "")


def _first(fields: Mapping[str, object], names: tuple[str, ...]) -> object:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _truth(value: object) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "yes": True, "false": False, "no": False}.get(value.strip().lower())
    return value if isinstance(value, bool) else None
