"""One trial of a study: how a task ended with so many candidates, and what each round of review changed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from swe_ai_fleet.cli.batch.results import Row
from swe_ai_fleet.domain.execution import ExecutionState


class Part(StrEnum):
    """What can be left out of a deliberation."""

    REVIEWS = "reviews"
    """Reviews, revisions and votes."""
    PROBES = "probes"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Variant:
    """How trials are run: with how many candidates, and without which part (empty: with all)."""

    candidates: int
    without: Part | Literal[""] = ""

    @property
    def name(self) -> str:
        """As in names of files and tasks."""
        return f"c{self.candidates}{f'-no-{self.without}' if self.without else ''}"

    def __str__(self) -> str:
        return f"{self.candidates}{f' without {self.without}' if self.without else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """After so many rounds of review (0: as drafted), how many candidates stood and how many were not refuted."""

    round: int
    candidates: int
    passed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What an execution's events say beyond its result."""

    execution_id: str
    model_calls: int
    tool_calls: int
    standings: tuple[Standing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One task, run once. `repeat` counts from 1; without a `detail` the log was gone."""

    variant: Variant
    repeat: int
    row: Row
    detail: Detail | None = None

    @property
    def key(self) -> tuple[str, int]:
        """The same for the trials that differ in their variant only."""
        return self.row.instance_id, self.repeat


def detail_of(state: ExecutionState) -> Detail:
    """What a study keeps of an execution that has ended."""
    return Detail(
        execution_id=state.execution_id,
        model_calls=state.usage.model_calls,
        tool_calls=state.usage.tool_calls,
        standings=standings(state),
    )


def standings(state: ExecutionState) -> tuple[Standing, ...]:
    """What stood after each round: of each author the last candidate by then that was not dropped."""
    last = max((candidate.round for candidate in state.candidates.values()), default=0)
    found: list[Standing] = []
    for number in range(last + 1):
        standing: dict[str, tuple[int, str]] = {}
        for name, candidate in state.candidates.items():
            if candidate.round <= number and name not in state.dropped:
                known = standing.get(candidate.author, (-1, ""))
                standing[candidate.author] = max(known, (candidate.round, name))
        reports = [state.reports.get(name) for _, name in standing.values()]
        passed = sum(report is not None and report.accepted for report in reports)
        found.append(Standing(round=number, candidates=len(standing), passed=passed))
    return tuple(found)


def read_details(path: Path) -> dict[str, Detail]:
    """The details kept so far, by execution; lines that are none are passed over."""
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
    """Add details to those kept."""
    content = "".join(f"{json.dumps(asdict(detail))}\n" for detail in details)
    if not content:
        return
    with path.open("a") as file:
        # The last write may have been cut off: what comes next must not become part of it.
        file.write(f"\n{content}" if file.tell() else content)
