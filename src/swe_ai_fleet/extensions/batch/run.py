"""`fleet batch`: submits the records of a file, a few at a time, and stores their results."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import Fleet, FleetClient
from swe_ai_fleet.cli.live import WatchedProgress
from swe_ai_fleet.cli.outcome import candidate_diff
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen, interrupts
from swe_ai_fleet.domain.candidate import Verdict
from swe_ai_fleet.domain.errors import FleetError, innermost
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.extensions.batch.plan import BatchPlan
from swe_ai_fleet.extensions.batch.records import BadLine, TaskRecord, chosen, read_records, task_id, without_image
from swe_ai_fleet.extensions.batch.report import agreement_table, document, write_report, write_result
from swe_ai_fleet.extensions.batch.results import (
    ERROR,
    Board,
    ResultRow,
    Results,
    histogram,
    histogram_table,
    open_results,
    write_predictions,
)
from swe_ai_fleet.extensions.batch.verification import HiddenTestBench, repository_path
from swe_ai_fleet.watching.text import one_line

UNREACHABLE_SECONDS = 600.0
"""How long an unavailable or full fleet is retried before the batch stops."""
_FIRST_PAUSE_SECONDS = 0.5
_LAST_PAUSE_SECONDS = 15.0
_IMAGE = "environment.container_image"
_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """A record to run or, with an earlier result in `ended`, only to evaluate."""

    record: TaskRecord
    request: pb.SubmitTaskRequest
    ended: ResultRow | None = None

    @property
    def repo(self) -> pb.RepoRef:
        return self._inner.repo

    @property
    def environment(self) -> pb.EnvironmentSpec:
        return self._inner.environment

    @property
    def attempt(self) -> int:
        return self._inner.attempt

    @property
    def _inner(self) -> pb.DeliberateRequest | pb.OrchestrateRequest:
        request = self.request
        return request.deliberate if request.WhichOneof("task") == "deliberate" else request.orchestrate


async def batch(
    screen: Screen,
    fleet: Fleet,
    plan: BatchPlan,
    open_bench: Callable[[], Awaitable[HiddenTestBench]],
    *,
    unreachable_seconds: float = UNREACHABLE_SECONDS,
) -> Exit:
    """Run a batch to its end. Ctrl-C stops submitting and watching; the same command continues it.

    Args:
        open_bench: Opens the bench that runs hidden tests and creates repositories; called only if it is needed.
        unreachable_seconds: How long an unavailable fleet is retried.
    """
    try:
        records, bad = read_records(plan.file)
    except OSError as fault:
        raise CommandFault(f"cannot read {plan.file}: {fault.strerror}") from None
    records = chosen(records, only=plan.only, limit=plan.limit)
    if not plan.images:
        records = [without_image(record) for record in records]
    bench = await open_bench() if plan.evaluate or any(record.creates_repository for record in records) else None
    with open_results(plan.results) as results:
        unmade = await _make_repositories(plan, records, results, bench) if bench is not None else {}
        works, refused = planned(plan, records, results, unmade)
        bad = sorted([*bad, *refused], key=lambda line: line.line)
        for line in bad:
            screen.note(str(line), style="yellow")
        if bad and plan.strict:
            raise CommandFault(
                f"{len(bad)} of {plan.file.name}'s lines are not valid tasks; the first: {bad[0]}",
                hint="fix them, or omit --strict to skip them",
            )
        if not records:
            raise CommandFault(f"{plan.file} contains no task", hint=str(bad[0]) if bad else "")
        ids = {record.instance_id for record in records}
        lines = {entry.line for entry in bad}
        begun = _Batch(
            plan=plan,
            results=results,
            board=Board(screen, total=len(works)),
            bench=bench if plan.evaluate else None,
            unreachable_seconds=unreachable_seconds,
        )
        if len(works) < len(records):
            screen.note(f"{len(records) - len(works)} of {len(records)} records have ended before")
        stopped = False
        try:
            if works:
                with interrupts() as signals:
                    async with fleet as client:
                        running = await signals.race(begun.run(client, works))
                        stopped = not running.done()
                        running.cancel()
                        await asyncio.gather(running, return_exceptions=stopped)
        finally:
            rows = [row for row in results.rows.values() if row.instance_id in ids]
            write_predictions(plan.predictions, rows, model=plan.model, form=plan.form)
        reasons = {line.line: line.reason for line in bad}
        not_run: dict[str, str] = {}
        for record in records:
            row = results.rows.get(record.instance_id)
            if row is None or not row.is_done:
                reason = row.error if row is not None else reasons.get(record.line, "it was not started")
                not_run[record.instance_id] = f"needs {record.needs}" if record.needs else reason
        left = sum(record.instance_id not in results.rows and record.line not in lines for record in records)
        return _conclude(screen, plan, rows, bad=bad, left=left, not_run=not_run, stopped=stopped)


async def _make_repositories(
    plan: BatchPlan, records: Sequence[TaskRecord], results: Results, bench: HiddenTestBench
) -> dict[str, str]:
    """Create the repositories of tasks that need one; returns the faults by their tasks' ids."""
    unmade: dict[str, str] = {}
    for record in records:
        row = results.rows.get(record.instance_id)
        exists = repository_path(plan.repositories, record.instance_id).exists()
        if (
            not record.creates_repository
            or record.needs
            or (exists and (record.fault or (row is not None and row.is_done)))
        ):
            continue
        try:
            await bench.make_repository(record, plan.source(record) if record.fault else pb.RepoRef())
        except CommandFault as fault:
            unmade[record.instance_id] = fault.line
        except (FleetError, OSError) as fault:
            unmade[record.instance_id] = str(fault)
    return unmade


def planned(
    plan: BatchPlan, records: Sequence[TaskRecord], results: Results, unmade: Mapping[str, str]
) -> tuple[list[BatchItem], list[BadLine]]:
    """The remaining items, and the invalid records; `unmade` are records whose repository could not be created."""
    works: list[BatchItem] = []
    refused: list[BadLine] = []
    for record in records:
        if record.needs:
            continue
        if record.instance_id in unmade:
            refused.append(BadLine(line=record.line, reason=unmade[record.instance_id], folder=record.instance_id))
            continue
        row = results.rows.get(record.instance_id)
        ended = row if row is not None and row.is_done else None
        again = ended is not None and plan.retry and not ended.accepted
        unevaluated = plan.evaluate and bool(record.hidden) and ended is not None and ended.resolved is None
        if ended is not None and not again and not unevaluated:
            continue
        attempt = (row.attempt if row is not None else 1) + again
        try:
            request = plan.request(record, attempt=attempt)
        except CommandFault as fault:
            refused.append(BadLine(line=record.line, reason=fault.line))
        else:
            works.append(BatchItem(record=record, request=request, ended=None if again else ended))
    return works, refused


@dataclass(kw_only=True)
class _Batch:
    """A running batch."""

    plan: BatchPlan
    results: Results
    board: Board
    bench: HiddenTestBench | None
    unreachable_seconds: float

    async def run(self, client: FleetClient, works: Sequence[BatchItem]) -> None:
        """Run everything. Raises CommandFault where the fleet stays unavailable."""
        room = asyncio.Semaphore(self.plan.parallel)
        try:
            with self.board.live():
                async with asyncio.TaskGroup() as group:
                    for number, work in enumerate(works):
                        await room.acquire()
                        if number:
                            await asyncio.sleep(self.plan.stagger)
                        task = group.create_task(self._run_task(client, work))
                        task.add_done_callback(lambda _: room.release())
        except BaseExceptionGroup as faults:
            # The first failure is reported for all of them.
            raise innermost(faults) from None

    async def _run_task(self, client: FleetClient, work: BatchItem) -> None:
        row = work.ended or await self._run_to_end(client, work)
        if self.bench is not None and row.is_done and work.record.hidden:
            row = await self._evaluate(self.bench, work, row)
        self.results.add(row)
        self.board.ended(row)

    async def _evaluate(self, bench: HiddenTestBench, work: BatchItem, row: ResultRow) -> ResultRow:
        """The row with the hidden tests' result for the winner, else for the best refused candidate."""
        verdict = await bench.evaluate(work.record, work.repo, work.environment, row.model_patch or row.refused_patch)
        row = replace(
            row,
            resolved=verdict.resolved if row.model_patch else False,
            best_resolved=verdict.resolved if row.model_patch or row.refused_patch else None,
            evaluation=verdict.reason,
            rewards=verdict.rewards,
        )
        write_result(bench.folder(row.instance_id), work.record, row, verdict, model=self.plan.model)
        return row

    async def _run_to_end(self, client: FleetClient, work: BatchItem) -> ResultRow:
        """Follow a record's execution to its end, across outages of the fleet."""
        row = ResultRow(
            instance_id=work.record.instance_id,
            task_id=task_id(self.plan.name, work.record.instance_id),
            status=ERROR,
            attempt=work.attempt,
            notes=work.record.notes,
        )
        loop = asyncio.get_running_loop()
        pause, last_answer_at = _FIRST_PAUSE_SECONDS, loop.time()
        while True:
            progress = WatchedProgress()
            try:
                state = await self._follow(client, work, progress)
                patch = await candidate_diff(client, state, state.winner_id)
                best = state.ranking[0].candidate_id if state.ranking and not state.winner_id else ""
                refused = await candidate_diff(client, state, best)
            except CommandFault as fault:
                if fault.exit_code is not Exit.UNAVAILABLE:
                    needs = f"needs the image {work.record.image}: " if fault.field.endswith(_IMAGE) else ""
                    return replace(row, error=needs + fault.line)
                if progress.state is not None:
                    pause, last_answer_at = _FIRST_PAUSE_SECONDS, loop.time()
                if loop.time() - last_answer_at > self.unreachable_seconds:
                    raise
                self.board.waiting(row.instance_id, fault.message)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE_SECONDS)
            else:
                return _row(row, state, patch, refused)

    async def _follow(self, client: FleetClient, work: BatchItem, progress: WatchedProgress) -> ExecutionState:
        accepted = await client.submit(work.request)
        self.board.begun(work.record.instance_id, accepted.execution_id, progress, existed=accepted.already_existed)
        async for event in client.events(accepted.execution_id):
            progress.add(event)
        if progress.state is None or not progress.state.status.terminal:
            raise CommandFault("the fleet stopped sending events of the execution", exit_code=Exit.UNAVAILABLE)
        return progress.state


def _row(row: ResultRow, state: ExecutionState, patch: str, refused: str) -> ResultRow:
    return replace(
        row,
        status=str(state.status),
        execution_id=state.execution_id,
        winner=state.winner_id,
        verdict=str(state.verdict or ""),
        model_patch=patch,
        refused_patch=refused,
        error=state.error,
        tokens=state.usage.total_tokens,
        prompt_tokens=state.usage.prompt_tokens,
        completion_tokens=state.usage.completion_tokens,
        cost=state.usage.cost,
        seconds=state.duration_ms / 1000,
        finished_at=state.finished_at,
    )


def _conclude(
    screen: Screen,
    plan: BatchPlan,
    rows: Sequence[ResultRow],
    *,
    bad: Sequence[BadLine],
    left: int,
    not_run: Mapping[str, str],
    stopped: bool,
) -> Exit:
    """Print and write the results of the batch; returns the exit code."""
    accepted = sum(row.accepted for row in rows)
    judged = [row for row in rows if row.resolved is not None]
    verdicts = Counter(row.verdict for row in rows if row.accepted and row.verdict)
    if stopped:
        code = Exit.STOPPED
    elif bad or left or accepted < len(rows):
        code = Exit.NOT_ACCEPTED
    else:
        code = Exit.UNVERIFIED if verdicts[Verdict.UNVERIFIED] else Exit.ACCEPTED
    counted = histogram(rows, bad_lines=len(bad), left=left)
    report = document(plan.name, plan.model, rows, not_run=not_run)
    if plan.report is not None:
        write_report(plan.report, report, rows)
    if screen.json:
        screen.document(
            {
                "batch": plan.name,
                "records": counted,
                "accepted": accepted,
                "verdicts": dict(verdicts),
                "resolved": sum(bool(row.resolved) for row in judged) if judged else None,
                "evaluated": len(judged),
                "agreement": report["agreement"],
                "not_run": not_run,
                "bad_lines": [{"line": line.line, "folder": line.folder, "reason": line.reason} for line in bad],
                "tokens": sum(row.tokens for row in rows),
                "cost": sum(row.cost for row in rows),
                "results": str(plan.results),
                "predictions": str(plan.predictions),
                "report": str(plan.report or ""),
                "stopped": stopped,
                "exit_code": int(code),
            }
        )
        return code
    screen.out.print(histogram_table(counted))
    for name, why in [*not_run.items()][:_MAX_SHOWN]:
        screen.line(f"not run: {one_line(name, 100)}: {one_line(why, 300)}", style="yellow")
    if verdicts:
        screen.line(f"winners: {', '.join(f'{number} {verdict}' for verdict, number in verdicts.most_common())}")
    if judged:
        screen.line(f"resolved by the hidden tests: {sum(bool(row.resolved) for row in judged)} of {len(judged)}")
        screen.out.print(agreement_table(report))
    screen.line(f"results: {plan.results}")
    screen.line(f"predictions: {plan.predictions}")
    if plan.report is not None:
        screen.line(f"report: {plan.report.with_suffix('.md')}")
    if stopped:
        screen.line("stopped; submitted tasks continue in the fleet, and the same command resumes from here")
    return code
