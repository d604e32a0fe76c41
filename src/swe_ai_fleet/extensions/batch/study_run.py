"""`fleet study`: a batch for each variant and each repeat, one after the other, then the report."""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from swe_ai_fleet.cli.client import Fleet, FleetClient
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.cli.tables import plain_table
from swe_ai_fleet.extensions.batch.plan import BatchPlan
from swe_ai_fleet.extensions.batch.records import read_records
from swe_ai_fleet.extensions.batch.results import ResultRow, open_results
from swe_ai_fleet.extensions.batch.run import batch
from swe_ai_fleet.extensions.batch.study_report import (
    HEADINGS,
    AblatedPart,
    Detail,
    StudyTrial,
    Variant,
    arms,
    cells,
    detail_of,
    document,
    keep_details,
    markdown,
    read_details,
)
from swe_ai_fleet.extensions.batch.verification import HiddenTestBench
from swe_ai_fleet.watching.events import fold_events


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The definition of a study.

    Args:
        plan: The common plan of all trials; its name is the study's.
        without: The parts left out in turn, each with the largest number of candidates.
    """

    plan: BatchPlan
    candidates: tuple[int, ...]
    repeats: int
    directory: Path
    without: tuple[AblatedPart, ...] = ()

    @property
    def details(self) -> Path:
        return self.directory / "details.jsonl"

    @property
    def variants(self) -> tuple[Variant, ...]:
        most = max(self.candidates)
        return (
            *(Variant(candidates=number) for number in self.candidates),
            *(Variant(candidates=most, without=part) for part in self.without),
        )

    def part(self, variant: Variant, repeat: int) -> BatchPlan:
        """The batch of one variant and one repeat."""
        name = f"{variant.name}-r{repeat}"
        probes = self.plan.order.probes and variant.without is not AblatedPart.PROBES
        return replace(
            self.plan,
            name=f"{self.plan.name}-{name}",
            results=self.directory / f"{name}.results.jsonl",
            predictions=self.directory / f"{name}.preds.json",
            order=replace(self.plan.order, probes=probes),
            candidates=variant.candidates,
            reviewed=variant.without is not AblatedPart.REVIEWS,
        )

    def parts(self) -> list[tuple[Variant, int]]:
        """All batches, repeat by repeat, so that a stopped study has comparable results."""
        return [(variant, repeat) for repeat in range(1, self.repeats + 1) for variant in self.variants]


async def study(
    screen: Screen,
    fleet: Fleet,
    wanted: Study,
    open_bench: Callable[[], Awaitable[HiddenTestBench]],
) -> Exit:
    """Run the missing trials of a study, and report on all. Ctrl-C stops it; the same command continues it.

    Args:
        open_bench: Opens the bench that runs hidden tests; called only if the plan needs it.
    """
    wanted.directory.mkdir(parents=True, exist_ok=True)
    # Each batch shows its progress; results are shown only in the study's report.
    quiet = Screen(json=False, out=Console(file=io.StringIO()), err=screen.err)
    stopped = False
    async with fleet as client:
        for variant, repeat in wanted.parts():
            screen.note(f"candidates: {variant}, repeat {repeat} of {wanted.repeats}")
            part = wanted.part(variant, repeat)
            code = await batch(quiet, nullcontext(client), part, open_bench)
            await _store_details(client, wanted.details, part)
            if code is Exit.STOPPED:
                stopped = True
                break
    trials = collected(wanted)
    records, _ = read_records(wanted.plan.file)
    missing = len(records) * len(wanted.parts()) - sum(trial.row.is_done for trial in trials)
    return _conclude(screen, wanted, trials, missing=missing, stopped=stopped)


async def _store_details(client: FleetClient, details: Path, part: BatchPlan) -> None:
    """Store the details of trials that have just ended, except those whose events are gone."""
    recorded = read_details(details)
    new: list[Detail] = []
    for row in _rows(part):
        if not row.is_done or not row.execution_id or row.execution_id in recorded:
            continue
        try:
            state = await fold_events(client.events(row.execution_id))
        except CommandFault as fault:
            if fault.exit_code is Exit.UNAVAILABLE:
                break
            continue
        if state is not None and state.status.terminal:
            new.append(detail_of(state))
    keep_details(details, new)


def collected(wanted: Study) -> list[StudyTrial]:
    """All stored trials of tasks that are still in the file."""
    records, _ = read_records(wanted.plan.file)
    ids = {record.instance_id for record in records}
    details = read_details(wanted.details)
    return [
        StudyTrial(variant=variant, repeat=repeat, row=row, detail=details.get(row.execution_id))
        for variant, repeat in wanted.parts()
        for row in _rows(wanted.part(variant, repeat))
        if row.instance_id in ids
    ]


def _rows(plan: BatchPlan) -> list[ResultRow]:
    if not plan.results.exists():
        return []
    with open_results(plan.results) as results:
        return list(results.rows.values())


def _conclude(screen: Screen, wanted: Study, trials: Sequence[StudyTrial], *, missing: int, stopped: bool) -> Exit:
    """Print and write the report; the exit code says whether it is complete."""
    all_arms = arms(trials)
    name = wanted.plan.name
    report = document(name, all_arms, missing=missing)
    (wanted.directory / "report.md").write_text(markdown(name, all_arms, missing=missing))
    (wanted.directory / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    code = Exit.STOPPED if stopped else Exit.NOT_ACCEPTED if missing else Exit.ACCEPTED
    if screen.json:
        screen.document({**report, "stopped": stopped, "exit_code": int(code)})
        return code
    screen.out.print(plain_table(HEADINGS, map(cells, all_arms)))
    if missing:
        screen.line(f"{missing} trials are missing; the same command continues")
    screen.line(f"report: {wanted.directory / 'report.md'}")
    return code


def parts(text: str) -> tuple[AblatedPart, ...]:
    """The distinct parts to leave out in turn. Raises CommandFault."""
    wanted = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if unknown := [part for part in wanted if part not in set(AblatedPart)]:
        raise CommandFault(
            f"{unknown[0][:80]!r} is not a part of a deliberation", field="without", hint=" or ".join(AblatedPart)
        )
    return tuple(map(AblatedPart, wanted))
