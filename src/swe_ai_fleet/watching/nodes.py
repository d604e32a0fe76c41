"""Nodes of a workflow's run as JSON, which watchers are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.event import ExecutionStatus, NodeUpdated
from swe_ai_fleet.domain.json_values import parse_json
from swe_ai_fleet.domain.workflow import JsonValue

Level = Literal["debug", "info", "warning", "error"]


def status_word(status: ExecutionStatus) -> str:
    """How messages call where an execution stands: one that is worked on is `running`, as its nodes are."""
    return "running" if status is ExecutionStatus.IN_PROGRESS else status.value


def node_state(update: NodeUpdated) -> Mapping[str, JsonValue]:
    """A node's state as JSON; `inputs` and `output` are values, null where there are none or they are elsewhere."""
    return {
        "kind": "node",
        "status": update.status.value,
        "attempt": update.attempt,
        "failures": update.failures,
        "inputs": json_or_text(update.inputs),
        "output": json_or_text(update.output),
        "error": update.error,
        "label": update.label,
        "execution_id": update.execution_id,
        "duration_ms": update.duration_ms,
        "usage": usage_state(update.usage),
    }


def ended_state(
    status: ExecutionStatus,
    *,
    error: str,
    usage: Usage,
    duration_ms: int,
    output: JsonValue = None,
    winner_id: str = "",
    verdict: str = "",
    verdict_reasons: Sequence[str] = (),
    candidates: Sequence[JsonValue] = (),
) -> dict[str, JsonValue]:
    """What an execution that has ended gave, as JSON; `output` is what a workflow gave, by name."""
    return {
        "status": status.value,
        "winner_id": winner_id,
        "verdict": verdict,
        "verdict_reasons": list(verdict_reasons),
        "error": error,
        "usage": usage_state(usage),
        "duration_ms": duration_ms,
        "candidates": list(candidates),
        **({} if output is None else {"output": output}),
    }


def json_or_text(text: str) -> JsonValue:
    """The value that a text of exact JSON stands for; None for an empty one, the text itself where it is not JSON."""
    try:
        return parse_json(text) if text else None
    except ValueError:
        return text


def usage_state(usage: Usage) -> Mapping[str, JsonValue]:
    """What was spent, as JSON."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "model_calls": usage.model_calls,
        "tool_calls": usage.tool_calls,
        "cost": usage.cost,
    }
