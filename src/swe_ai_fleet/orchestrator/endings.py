"""How the work on a task ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import CheckReport
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.orchestrator.deliberate import Conclusion


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the work on a task ended, to be recorded."""

    status: ExecutionStatus
    winner_id: str = ""
    error: str = ""
    usage: Usage = field(default_factory=Usage)


def without_winner(verdict: Conclusion) -> Ending:
    """The ending of a deliberation in which nobody won."""
    if verdict.rejections and not verdict.candidates and not verdict.losses:
        reasons = "; ".join(dict.fromkeys(verdict.rejections))
        return Ending(status=ExecutionStatus.REJECTED, error=reasons, usage=verdict.usage)
    if not verdict.candidates:
        reasons = "; ".join(dict.fromkeys((*verdict.losses, *verdict.rejections)))
        error = f"no agent handed in a candidate: {reasons}"
        return Ending(status=ExecutionStatus.FAILED, error=error, usage=verdict.usage)
    if verdict.timed_out:
        return Ending(status=ExecutionStatus.TIMEOUT, error="the time was up for every agent", usage=verdict.usage)
    best = verdict.ranking[0]
    fault = next((one.error for one in verdict.candidates if one.candidate_id == best.candidate_id), "")
    name = f"{best.candidate_id} ({fault})" if fault else best.candidate_id
    error = f"no candidate passed; the best, {name}: {best.reason}"
    return Ending(status=ExecutionStatus.NO_WINNER, error=error, usage=verdict.usage)


def stands(report: CheckReport) -> bool:
    """Whether nothing speaks against a branch. Where nothing can be run on it, there is nothing against it either."""
    return not any(check.required and not check.skipped_reason and not check.passed for check in report.results)
