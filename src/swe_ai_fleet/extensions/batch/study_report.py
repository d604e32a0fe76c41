"""The report of a study: pass rates with their intervals, their costs, and the effect of reviews.

A trial is one run of one task with a number of candidates; it records its result and the state after each review.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean, median
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from swe_ai_fleet.domain.candidate import Verdict
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.extensions.batch.report import Rate, markdown_table, wilson
from swe_ai_fleet.extensions.batch.results import ResultRow

HEADINGS = (
    "candidates",
    "passed",
    "verified",
    "resolved",
    "gained / lost",
    "one candidate, after each round of review",
    "tokens",
    "model calls",
    "cost",
    "seconds (median)",
    "tokens per pass",
)


class AblatedPart(StrEnum):
    """A part that can be left out of a deliberation."""

    REVIEWS = "reviews"
    """Reviews, revisions and votes."""
    PROBES = "probes"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Variant:
    """The number of candidates of trials, and the part left out (empty: none)."""

    candidates: int
    without: AblatedPart | Literal[""] = ""

    @property
    def name(self) -> str:
        """Its name in names of files and tasks."""
        return f"c{self.candidates}{f'-no-{self.without}' if self.without else ''}"

    def __str__(self) -> str:
        return f"{self.candidates}{f' without {self.without}' if self.without else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewStanding:
    """The remaining candidates, and those of them that checks accepted, after a round of review (0: as drafted)."""

    round: int
    candidates: int
    passed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """The details of an execution that its result lacks."""

    execution_id: str
    model_calls: int
    tool_calls: int
    standings: tuple[ReviewStanding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTrial:
    """One run of one task. `repeat` counts from 1; without a `detail` the log was gone."""

    variant: Variant
    repeat: int
    row: ResultRow
    detail: Detail | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Equal for trials that differ only in their variant."""
        return self.row.instance_id, self.repeat


def detail_of(state: ExecutionState) -> Detail:
    """The details of an ended execution."""
    return Detail(
        execution_id=state.execution_id,
        model_calls=state.usage.model_calls,
        tool_calls=state.usage.tool_calls,
        standings=standings(state),
    )


def standings(state: ExecutionState) -> tuple[ReviewStanding, ...]:
    """The remaining candidates after each round: each author's latest one that was not dropped."""
    last = max((candidate.round for candidate in state.candidates.values()), default=0)
    rounds: list[ReviewStanding] = []
    for number in range(last + 1):
        standing: dict[str, tuple[int, str]] = {}
        for name, candidate in state.candidates.items():
            if candidate.round <= number and name not in state.dropped:
                latest = standing.get(candidate.author, (-1, ""))
                standing[candidate.author] = max(latest, (candidate.round, name))
        reports = [state.reports.get(name) for _, name in standing.values()]
        passed = sum(report is not None and report.accepted for report in reports)
        rounds.append(ReviewStanding(round=number, candidates=len(standing), passed=passed))
    return tuple(rounds)


def read_details(path: Path) -> dict[str, Detail]:
    """The stored details by execution; unreadable lines are skipped."""
    if not path.exists():
        return {}
    reader = TypeAdapter(Detail)
    details: dict[str, Detail] = {}
    for line in path.read_bytes().splitlines():
        try:
            detail = reader.validate_json(line)
        except ValidationError:
            continue
        details[detail.execution_id] = detail
    return details


def keep_details(path: Path, details: Iterable[Detail]) -> None:
    """Append details to the file."""
    content = "".join(f"{json.dumps(asdict(detail))}\n" for detail in details)
    if not content:
        return
    with path.open("a") as file:
        # The last write may have been cut off: the next line must not be joined to it.
        file.write(f"\n{content}" if file.tell() else content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """All trials of one variant. Usage is the mean of a trial; cost is in the currency of the fleet's prices.

    `passed` is by the fleet's checks, `verified` by its verdicts, `resolved` by the hidden tests, where they were run.
    `rounds` are the rates at which single candidates passed as drafted and after each round of review. `gained` and
    `lost` count the trials that passed here and not with the fewest candidates, and the reverse.
    """

    candidates: int
    without: str
    passed: Rate
    verified: Rate
    resolved: Rate | None
    tokens: float
    model_calls: float
    cost: float
    seconds: float
    median_seconds: float
    cost_per_pass: float | None
    tokens_per_pass: float | None
    rounds: tuple[tuple[int, Rate], ...]
    gained: int
    lost: int


def arms(trials: Iterable[StudyTrial]) -> tuple[Arm, ...]:
    """The ended trials, grouped by their variant."""
    groups: dict[Variant, list[StudyTrial]] = defaultdict(list)
    for trial in trials:
        if trial.row.is_done:
            groups[trial.variant].append(trial)
    if not groups:
        return ()
    order = sorted(groups, key=lambda variant: (bool(variant.without), variant))
    fewest = {trial.key: _success(trial) for trial in groups[order[0]]}
    return tuple(_arm(variant, groups[variant], fewest) for variant in order)


def _arm(variant: Variant, trials: Sequence[StudyTrial], fewest: Mapping[tuple[str, int], bool]) -> Arm:
    passed = sum(trial.row.accepted for trial in trials)
    verified = sum(trial.row.accepted and trial.row.verdict == Verdict.VERIFIED for trial in trials)
    judged = [trial.row.resolved for trial in trials if trial.row.resolved is not None]
    calls = [trial.detail.model_calls for trial in trials if trial.detail is not None]
    tokens, cost = sum(trial.row.tokens for trial in trials), sum(trial.row.cost for trial in trials)
    seconds = [trial.row.seconds for trial in trials]
    both = [(_success(trial), fewest[trial.key]) for trial in trials if trial.key in fewest]
    return Arm(
        candidates=variant.candidates,
        without=variant.without,
        passed=wilson(passed, len(trials)),
        verified=wilson(verified, len(trials)),
        resolved=wilson(sum(judged), len(judged)) if judged else None,
        tokens=tokens / len(trials),
        model_calls=fmean(calls) if calls else 0.0,
        cost=cost / len(trials),
        seconds=fmean(seconds),
        median_seconds=median(seconds),
        cost_per_pass=cost / passed if passed else None,
        tokens_per_pass=tokens / passed if passed else None,
        rounds=_rounds([trial.detail.standings for trial in trials if trial.detail is not None]),
        gained=sum(own and not base for own, base in both),
        lost=sum(base and not own for own, base in both),
    )


def _success(trial: StudyTrial) -> bool:
    """Success by the hidden tests where they were run, else by the checks."""
    return trial.row.accepted if trial.row.resolved is None else trial.row.resolved


def _rounds(executions: Sequence[tuple[ReviewStanding, ...]]) -> tuple[tuple[int, Rate], ...]:
    """The rate of single candidates after each round; an execution with fewer rounds counts with its last one."""
    last = max((len(standings) for standings in executions), default=0)
    rates: list[tuple[int, Rate]] = []
    for number in range(last):
        reached = [standings[min(number, len(standings) - 1)] for standings in executions if standings]
        rate = wilson(sum(standing.passed for standing in reached), sum(standing.candidates for standing in reached))
        rates.append((number, rate))
    return tuple(rates)


def cells(arm: Arm) -> tuple[str, ...]:
    """An arm as a row of a table, under `HEADINGS`."""
    rounds = ", ".join(f"{number or 'drafted'}: {rate}" for number, rate in arm.rounds)
    return (
        f"{arm.candidates}{f' without {arm.without}' if arm.without else ''}",
        str(arm.passed),
        str(arm.verified),
        str(arm.resolved or "-"),
        f"+{arm.gained} / -{arm.lost}",
        rounds or "-",
        f"{arm.tokens:,.0f}",
        f"{arm.model_calls:.1f}",
        f"{arm.cost:.4f}",
        f"{arm.seconds:.1f} ({arm.median_seconds:.1f})",
        "-" if arm.tokens_per_pass is None else f"{arm.tokens_per_pass:,.0f}",
    )


def markdown(name: str, arms: Sequence[Arm], *, missing: int) -> str:
    """The report for people."""
    table = markdown_table(HEADINGS, map(cells, arms))
    left = f"\n{missing} trials are missing: not ended, or not accepted by the fleet.\n" if missing else ""
    return (
        f"# Study {name.replace('|', ' ')}\n\n{table}{left}\n"
        "Passed: there is a winner that no check refuted. Verified: a test or check fails without the winner's "
        "change and passes with it. Resolved: the hidden tests passed. Bounds are Wilson's of 95 %. Gained and lost: "
        "trials that succeeded here and not with the fewest candidates, and the reverse. "
        "Tokens, calls, cost and seconds are means of a trial.\n"
    )


def document(name: str, arms: Sequence[Arm], *, missing: int) -> dict[str, object]:
    """The report for programs."""
    return {"study": name, "missing": missing, "arms": [asdict(arm) for arm in arms]}
