"""`fleet batch`: hand the records of a file in, a few at a time, and keep what became of each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import Fleet, FleetClient
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.live import Progress
from swe_ai_fleet.cli.outcome import winning_diff
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.terminal import interrupts
from swe_ai_fleet.domain.candidate import Verdict
from swe_ai_fleet.domain.errors import innermost
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.extensions.batch.plan import Plan
from swe_ai_fleet.extensions.batch.records import BadLine, Record, evaluate, read_records, task_id
from swe_ai_fleet.extensions.batch.results import (
    ERROR,
    Board,
    Results,
    Row,
    histogram,
    histogram_table,
    open_results,
    write_predictions,
)
from swe_ai_fleet.ports import WorkspaceProvider

UNREACHABLE_SECONDS = 600.0
"""How long a fleet that does not answer, or is full, is asked again before the batch stops."""
_FIRST_PAUSE_SECONDS = 0.5
_LAST_PAUSE_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A record to run or, where `ended` has its earlier result, only to evaluate."""

    record: Record
    request: pb.SubmitTaskRequest
    ended: Row | None = None

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
    plan: Plan,
    workspaces: WorkspaceProvider | None = None,
    *,
    unreachable_seconds: float = UNREACHABLE_SECONDS,
) -> Exit:
    """Run a batch to its end. Ctrl-C stops handing in and watching; the same command goes on from there.

    Args:
        screen: Where to show it.
        fleet: Where the tasks run.
        plan: What is to be done.
        workspaces: Where hidden tests are run; needed where the plan asks for it.
        unreachable_seconds: How long a fleet that does not answer is asked again.
    """
    try:
        records, bad = read_records(plan.file)
    except OSError as fault:
        raise CommandFault(f"cannot read {plan.file}: {fault.strerror}", exit_code=Exit.USAGE) from None
    with open_results(plan.results) as results:
        works, refused = planned(plan, records, results)
        bad = sorted([*bad, *refused], key=lambda line: line.line)
        for line in bad:
            screen.note(str(line), style="yellow")
        if bad and plan.strict:
            raise CommandFault(
                f"{len(bad)} of {plan.file.name}'s lines are not valid tasks; the first: {bad[0]}",
                exit_code=Exit.USAGE,
                hint="fix them, or omit --strict to skip them",
            )
        if not records:
            raise CommandFault(f"{plan.file} contains no task", exit_code=Exit.USAGE, hint=str(bad[0]) if bad else "")
        ids = {record.instance_id for record in records}
        lines = {entry.line for entry in bad}
        begun = _Batch(
            plan=plan,
            results=results,
            board=Board(screen, total=len(works)),
            workspaces=workspaces if plan.evaluate else None,
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
            write_predictions(plan.predictions, rows, model=plan.model)
        left = sum(record.instance_id not in results.rows and record.line not in lines for record in records)
        return _conclude(screen, plan, rows, bad=bad, left=left, stopped=stopped)


def planned(plan: Plan, records: Sequence[Record], results: Results) -> tuple[list[Work], list[BadLine]]:
    """What is left to be done, and the records that cannot be requests."""
    works: list[Work] = []
    refused: list[BadLine] = []
    for record in records:
        row = results.rows.get(record.instance_id)
        ended = row if row is not None and row.done else None
        again = ended is not None and plan.retry and not ended.accepted
        unevaluated = plan.evaluate and bool(record.hidden) and ended is not None and ended.resolved is None
        if ended is not None and not again and not unevaluated:
            continue
        attempt = (row.attempt if row is not None else 1) + again
        try:
            request = plan.request(record, attempt=attempt)
        except CommandFault as fault:
            refused.append(BadLine(line=record.line, reason=fault.told))
        else:
            works.append(Work(record=record, request=request, ended=None if again else ended))
    return works, refused


@dataclass(kw_only=True)
class _Batch:
    """A batch under way."""

    plan: Plan
    results: Results
    board: Board
    workspaces: WorkspaceProvider | None
    unreachable_seconds: float

    async def run(self, client: FleetClient, works: Sequence[Work]) -> None:
        """Run everything. Raises CommandFault where the fleet stays unavailable."""
        room = asyncio.Semaphore(self.plan.parallel)
        try:
            with self.board.shown():
                async with asyncio.TaskGroup() as group:
                    for number, work in enumerate(works):
                        await room.acquire()
                        if number:
                            await asyncio.sleep(self.plan.stagger)
                        task = group.create_task(self._one(client, work))
                        task.add_done_callback(lambda _: room.release())
        except BaseExceptionGroup as faults:
            # The first failure is reported for all of them.
            raise innermost(faults) from None

    async def _one(self, client: FleetClient, work: Work) -> None:
        row = work.ended or await self._ended(client, work)
        if self.workspaces is not None and row.done and work.record.hidden:
            verdict = await evaluate(self.workspaces, work.repo, work.environment, work.record.hidden, row.model_patch)
            row = replace(row, resolved=verdict.resolved, evaluation=verdict.told)
        self.results.add(row)
        self.board.ended(row)

    async def _ended(self, client: FleetClient, work: Work) -> Row:
        """Follow a record's execution to its end, across outages of the fleet."""
        row = Row(
            instance_id=work.record.instance_id,
            task_id=task_id(self.plan.name, work.record.instance_id),
            status=ERROR,
            attempt=work.attempt,
        )
        loop = asyncio.get_running_loop()
        pause, heard_at = _FIRST_PAUSE_SECONDS, loop.time()
        while True:
            progress = Progress()
            try:
                state = await self._followed(client, work, progress)
                patch = await winning_diff(client, state)
            except CommandFault as fault:
                if fault.exit_code is not Exit.UNAVAILABLE:
                    return replace(row, error=fault.told)
                if progress.state is not None:
                    pause, heard_at = _FIRST_PAUSE_SECONDS, loop.time()
                if loop.time() - heard_at > self.unreachable_seconds:
                    raise
                self.board.waiting(row.instance_id, fault.message)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LAST_PAUSE_SECONDS)
            else:
                return _row(row, state, patch)

    async def _followed(self, client: FleetClient, work: Work, progress: Progress) -> ExecutionState:
        accepted = await client.submit(work.request)
        self.board.begun(work.record.instance_id, accepted.execution_id, progress, existed=accepted.already_existed)
        async for event in client.events(accepted.execution_id):
            progress.add(event)
        if progress.state is None or not progress.state.status.terminal:
            raise CommandFault("the fleet stopped sending events of the execution", exit_code=Exit.UNAVAILABLE)
        return progress.state


def _row(row: Row, state: ExecutionState, patch: str) -> Row:
    return replace(
        row,
        status=str(state.status),
        execution_id=state.execution_id,
        winner=state.winner_id,
        verdict=str(state.verdict or ""),
        model_patch=patch,
        error=state.error,
        tokens=state.usage.total_tokens,
        cost=state.usage.cost,
        seconds=state.duration_ms / 1000,
        finished_at=state.finished_at,
    )


def _conclude(
    screen: Screen, plan: Plan, rows: Sequence[Row], *, bad: Sequence[BadLine], left: int, stopped: bool
) -> Exit:
    """Say how it ended; the exit code that tells it."""
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
    if screen.json:
        screen.document(
            {
                "batch": plan.name,
                "records": counted,
                "accepted": accepted,
                "verdicts": dict(verdicts),
                "resolved": sum(bool(row.resolved) for row in judged) if judged else None,
                "evaluated": len(judged),
                "bad_lines": [{"line": line.line, "reason": line.reason} for line in bad],
                "tokens": sum(row.tokens for row in rows),
                "cost": sum(row.cost for row in rows),
                "results": str(plan.results),
                "predictions": str(plan.predictions),
                "stopped": stopped,
                "exit_code": int(code),
            }
        )
        return code
    screen.out.print(histogram_table(counted))
    if verdicts:
        screen.line(f"winners: {', '.join(f'{number} {verdict}' for verdict, number in verdicts.most_common())}")
    if judged:
        screen.line(f"resolved by the hidden tests: {sum(bool(row.resolved) for row in judged)} of {len(judged)}")
    screen.line(f"results: {plan.results}")
    screen.line(f"predictions: {plan.predictions}")
    if stopped:
        screen.line("stopped; submitted tasks continue in the fleet, and the same command resumes from here")
    return code
