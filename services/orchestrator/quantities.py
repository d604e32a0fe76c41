"""Times and amounts as clients get them."""

from __future__ import annotations

from datetime import UTC, datetime

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.domain import budget

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def usage(of: budget.Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=of.prompt_tokens,
        completion_tokens=of.completion_tokens,
        cached_tokens=of.cached_tokens,
        model_calls=of.model_calls,
        tool_calls=of.tool_calls,
        cost_usd=of.cost,
        duration_ms=of.duration_ms,
    )
