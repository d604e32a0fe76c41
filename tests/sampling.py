"""A value of any type of the domain in which every field says something of its own.

What a field says is made of its place alone, so a field that is added changes no other. And whether what was written
down once is still said.
"""

from __future__ import annotations

import types
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

MOMENT = "2026-11-{:02}T13:55:00.123+00:00"


def sample(kind: Any, named: str = "", **given: Any) -> Any:
    """A value of a type: two entries in each list, the last member of each enum; `given` are fields that are set.

    `named` is the name that a type had when what it says was written down.
    """
    return _Sampler((), named or kind.__name__).made(kind, "", given)


class _Sampler:
    def __init__(self, inside: tuple[Any, ...], place: str) -> None:
        self.inside = inside
        self.place = place

    def made(self, kind: Any, name: str, given: Mapping[str, Any]) -> Any:
        origin, inner = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            left = [one for one in inner if one is not type(None) and one not in self.inside]
            return self.made(left[0], name, {}) if left else None
        if origin is Literal:
            return inner[-1]
        if origin is frozenset:
            return frozenset({self.made(inner[0], name, {})})
        if origin is tuple and inner[-1] is not Ellipsis:
            return tuple(self.below(str(number)).made(one, name, {}) for number, one in enumerate(inner))
        if origin is not None and issubclass(origin, Mapping):
            return {self.made(inner[0], name, {}): self.made(inner[1], name, {})}
        if origin is not None and isinstance(inner[0], type) and issubclass(inner[0], Enum):
            return tuple(inner[0])[-2:]
        if origin is not None:
            numbers = () if inner[0] in self.inside else ("0", "1")
            return tuple(self.below(number).made(inner[0], name, {}) for number in numbers)
        if is_dataclass(kind):
            hints = get_type_hints(kind)
            wanted = [one.name for one in fields(kind) if one.init]
            return kind(
                **{
                    one: given[one] if one in given else self.below(one, kind).made(hints[one], one, {})
                    for one in wanted
                }
            )
        return self.simple(kind, name)

    def below(self, name: str, *kinds: Any) -> _Sampler:
        return _Sampler((*self.inside, *kinds), f"{self.place}.{name}")

    def simple(self, kind: Any, name: str) -> Any:
        number = zlib.crc32(self.place.encode()) % 9_000 + 1
        if isinstance(kind, type) and issubclass(kind, Enum):
            return list(kind)[-1]
        if kind is bool:
            return True
        if kind is int:
            return number
        if kind is float:
            return number + 0.5
        if kind is bytes:
            return b"%d" % number
        if name == "at" or name.endswith("_at"):
            return MOMENT.format(1 + number % 28)
        return f"{name or 'text'}-{number}"


def missing(before: Any, now: Any, place: str = "") -> list[str]:
    """Where what was said before is not said any more, or differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [one for key in before for one in missing(before[key], now.get(key), f"{place}.{key}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [one for i, pair in enumerate(zip(before, now, strict=True)) for one in missing(*pair, f"{place}[{i}]")]
    return [] if before == now else [f"{place}: {before!r} became {now!r}"]


def whole_state() -> Any:
    """An execution that has everything that a client is told, its parts named alike wherever they are named."""
    from swe_ai_fleet.domain.event import ExecutionStatus
    from swe_ai_fleet.domain.execution import ExecutionState
    from swe_ai_fleet.domain.task import TaskKind

    state = sample(ExecutionState, status=ExecutionStatus.COMPLETED)
    (first,), (report,) = state.candidates.values(), state.reports.values()
    second = replace(first, candidate_id="second", revises="", agent_id="agent-2")
    first = replace(first, candidate_id="first", revises="second", stop_reason="final_answer")
    (agent,), (head,) = state.agents.values(), state.signed_heads.values()
    agent = replace(agent, agent_id=first.agent_id, status="finished", stop_reason="final_answer")
    ranks = [replace(one, candidate_id=name) for one, name in zip(state.ranking, ("first", "second"), strict=True)]
    derivation = replace(
        state.derivation,
        subtasks=tuple(
            replace(one, dependencies=(state.derivation.subtasks[0].subtask_id,)) for one in state.derivation.subtasks
        ),
    )
    return replace(
        state,
        task=replace(state.task, kind=TaskKind.ORCHESTRATE),
        candidates={"first": first, "second": replace(second, stop_reason="final_answer")},
        reports={"first": report, "second": replace(report, verdict=None)},
        agents={agent.agent_id: agent},
        signed_heads={agent.agent_id: replace(head, agent_id=agent.agent_id, hash=agent.audit_head, signature="0a0b")},
        critiques=tuple(replace(one, candidate_id="first") for one in state.critiques),
        votes=tuple(replace(one, choice="first") for one in state.votes),
        dropped={},
        ranking=tuple(ranks),
        winner_id="first",
        derivation=derivation,
        subtask_outcomes={
            one.subtask_id: replace(outcome, subtask_id=one.subtask_id, status="completed")
            for one in derivation.subtasks
            for outcome in state.subtask_outcomes.values()
        },
    )
