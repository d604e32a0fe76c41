"""A rubric as evidence: a model's verdict on each item, which counts only with a quote that is really in the code."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from swe_ai_fleet.agents.scoring import ItemShape, RubricJudge, RubricOpinion
from swe_ai_fleet.domain.assignment import CheckAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import CheckKind, CheckReport, CheckResult
from swe_ai_fleet.domain.task import Constraints
from swe_ai_fleet.domain.text import shortened
from swe_ai_fleet.orchestrator.evidence.check_results import verdict_of
from swe_ai_fleet.orchestrator.evidence.patch import Patch
from swe_ai_fleet.orchestrator.evidence.source_files import CloneFiles

MAX_ITEMS = 30
_BULLET = re.compile(r"\s*(?:[-*•]|\d{1,3}[.)])\s+(.+)")
_SHORTEST_QUOTE = 6
_MAX_QUOTE_LINES = 12
_WORTH = {"met": 1.0, "partly": 0.5, "not": 0.0}


def rubric_items(constraints: Constraints) -> tuple[str, ...]:
    """The items of a rubric: each requirement, and each bullet of the rubric, or the whole where it has none."""
    rubric = constraints.rubric.strip()
    bullets = [match[1].strip() for line in rubric.splitlines() if (match := _BULLET.fullmatch(line))]
    items = (*constraints.requirements, *(bullets or ([rubric] if rubric else [])))
    return tuple(dict.fromkeys(item.strip() for item in items if item.strip()))[:MAX_ITEMS]


async def rubric_check(
    judge: RubricJudge, assignment: CheckAssignment, patch: Patch, files: CloneFiles, earlier: Sequence[CheckResult]
) -> CheckResult | None:
    """The check, never required; its score is the share of items met, partly met ones count half.

    None where the task has neither rubric nor requirements. No model is asked about a candidate that was refused.
    """
    items = rubric_items(assignment.task.constraints)
    if not items:
        return None
    verdict, reasons = verdict_of(earlier)
    report = CheckReport(candidate_id=assignment.candidate_id, results=tuple(earlier), verdict=verdict, reasons=reasons)
    if not report.accepted:
        return _skipped("not every required check passed")
    started_at = time.monotonic()
    diff = b"".join(file.raw for file in patch.files).decode("utf-8", "replace")
    opinion = await judge.opinion(assignment, items, diff, report)
    duration_ms = round((time.monotonic() - started_at) * 1000)
    if opinion.error:
        return _skipped(f"the model gave no usable answer: {opinion.error}", opinion, duration_ms)
    return _result_of(items, opinion, _Quotes(patch, files), duration_ms)


class _Quotes:
    """Looks up a model's quotes in the patch and the clone."""

    def __init__(self, patch: Patch, files: CloneFiles) -> None:
        self._files = files
        self._changed = "\n".join(_squeezed(line.text) for file in patch.files for line in file.lines("+-"))

    def found(self, verdict: ItemShape) -> bool:
        """Whether each line of a verdict's quote is in a changed line, or in the file that it names."""
        lines = [_squeezed(line) for line in verdict.quote.strip().splitlines() if line.strip()]
        if not lines or len(lines) > _MAX_QUOTE_LINES or len("".join(lines)) < _SHORTEST_QUOTE:
            return False
        if all(self._in(self._changed, line) for line in lines):
            return True
        text = self._files.text(verdict.file) if verdict.file else ""
        named = "\n".join(map(_squeezed, text.splitlines()))
        return all(self._in(self._changed, line) or self._in(named, line) for line in lines)

    @staticmethod
    def _in(text: str, line: str) -> bool:
        # Models may copy the diff's sign.
        return line in text or (line[:1] in ("+", "-") and bool(line[1:].strip()) and line[1:].strip() in text)


def _result_of(items: Sequence[str], opinion: RubricOpinion, quotes: _Quotes, duration_ms: int) -> CheckResult:
    by_item = {verdict.item: verdict for verdict in reversed(opinion.verdicts)}
    judged = [_judge(item, by_item.get(number), quotes) for number, item in enumerate(items, start=1)]
    met = sum(worth == 1 for worth, _ in judged)
    return CheckResult(
        kind=CheckKind.RUBRIC,
        name="rubric",
        passed=met == len(items),
        required=False,
        score=round(sum(worth for worth, _ in judged) / len(items), 4),
        message=f"{met} of {len(items)} items met",
        output="\n".join(f"{number}. {text}" for number, (_, text) in enumerate(judged, start=1)),
        problems=tuple(text for worth, text in judged if worth < 1),
        details={"model": opinion.model},
        usage=opinion.usage,
        duration_ms=duration_ms,
    )


def _judge(item: str, verdict: ItemShape | None, quotes: _Quotes) -> tuple[float, str]:
    """The value of an item from 0 to 1, and the reason in words."""
    title = shortened(item, 200)
    if verdict is None:
        return 0.0, f"{title}: no verdict"
    word = re.split(r"[\s_.,:;-]", verdict.verdict.strip().lower().strip("\"'*`"))[0]
    word = {"partial": "partly", "partially": "partly", "yes": "met", "fully": "met"}.get(word, word)
    worth = _WORTH.get(word, 0.0)
    quote = " ".join(verdict.quote.split())[:300]
    because = f" ({' '.join(verdict.reason.split())[:300]})" if verdict.reason.strip() else ""
    if word not in _WORTH:
        return 0.0, f"{title}: no readable verdict{because}"
    if worth and not quotes.found(verdict):
        why = f"the quote {quote!r} is not there" if quote else "without a quote"
        return 0.0, f"{title}: said to be {word}, but {why}{because}"
    quoted = f" by {quote!r}" if worth else ""
    return worth, f"{title}: {'not met' if word == 'not' else word}{quoted}{because}"


def _skipped(reason: str, opinion: RubricOpinion | None = None, duration_ms: int = 0) -> CheckResult:
    return CheckResult(
        kind=CheckKind.RUBRIC,
        name="rubric",
        passed=False,
        required=False,
        skipped_reason=reason,
        details={"model": opinion.model} if opinion else {},
        usage=opinion.usage if opinion else Usage(),
        duration_ms=duration_ms,
    )


def _squeezed(line: str) -> str:
    return " ".join(line.split())
