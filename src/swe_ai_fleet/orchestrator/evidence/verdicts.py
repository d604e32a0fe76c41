"""What the evidence about a candidate comes to, and why, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from swe_ai_fleet.domain.candidate import CheckKind, CheckResult
from swe_ai_fleet.domain.verdict import Verdict

_MOST_REASONS = 6
_REASON_CHARS = 400
_RUNS = (CheckKind.DRY_RUN, CheckKind.COMMAND)


def verdict_of(results: Sequence[CheckResult]) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict on a candidate and its reasons, the most telling first.

    Refuted: a required check fails. Verified: a test or check fails without the change and passes with it, and no
    required check fails. Unverified: neither.
    """
    failed = [result for result in results if result.required and not result.passed and not result.skipped_reason]
    if failed:
        return Verdict.REFUTED, _told(f"{result.name}: {result.message or 'failed'}" for result in failed)
    shown = [result for result in results if result.shown]
    rest = [result for result in results if result.kind in _RUNS and not result.shown]
    if shown:
        return Verdict.VERIFIED, _told(f"{result.name}: {result.message}" for result in (*shown, *rest))
    if not rest:
        return Verdict.UNVERIFIED, ("nothing was run",)
    return Verdict.UNVERIFIED, _told(f"{result.name}: {result.skipped_reason or result.message}" for result in rest)


def _told(reasons: Iterable[str]) -> tuple[str, ...]:
    texts = islice(reasons, _MOST_REASONS)
    return tuple(text if len(text) <= _REASON_CHARS else f"{text[:_REASON_CHARS]}…" for text in texts)
