"""What a failed call says about the server behind it, for those who decide when to try again."""

from __future__ import annotations

from openai import APIStatusError

from swe_ai_fleet.adapters.openai_model.faults import Refusal, retry_after_seconds
from swe_ai_fleet.domain.errors import ModelError


def pushback(error: ModelError) -> tuple[int, float | None]:
    """(HTTP status, seconds that the server asks to wait if it does) behind a fault; status 0: no answer came."""
    cause = error.__cause__
    if isinstance(cause, APIStatusError):
        return cause.status_code, retry_after_seconds(cause)
    # An error in place of a completion, or in a stream that had begun well.
    refusal = getattr(cause, "refusal", None)
    if isinstance(refusal, Refusal):
        return refusal.status, None
    # An answer of success that is no completion is refused by whoever reads it.
    return (200 if isinstance(cause, ValueError | RecursionError) else 0), None
