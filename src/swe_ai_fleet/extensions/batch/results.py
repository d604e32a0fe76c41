"""Results of a batch's records: one line each in a file beside the batch, so that it can be continued.

A running batch is shown as a live table in the terminal, or as a line for each start and each end.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from pydantic import TypeAdapter, ValidationError
from rich.live import Live
from rich.table import Table

from swe_ai_fleet.cli.executions import exit_of
from swe_ai_fleet.cli.live import WatchedProgress
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.cli.tables import add_row, empty_table
from swe_ai_fleet.domain.candidate import Verdict
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT, ExecutionStatus
from swe_ai_fleet.watching.text import one_line

ERROR = "error"
"""The status of a record that the fleet did not accept."""
_BAR_CHARS = 30
_STYLES = {"completed": "green", "no_winner": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """A record's result. `status` is its execution's, or `error`; `resolved` is the hidden tests' result, if run.

    `verdict` is that on the winner, or on the best candidate without one; empty in rows of older fleets.
    `best_resolved` is the hidden tests' result for that candidate, whose patch without a winner is `refused_patch`.
    `rewards` are a Harbor task's. `notes` list deviations from the benchmark. `cost` is in the currency of the fleet's
    prices, `seconds` the execution's duration.
    """

    instance_id: str
    task_id: str
    status: str
    attempt: int = 1
    execution_id: str = ""
    winner: str = ""
    verdict: str = ""
    model_patch: str = ""
    error: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    resolved: bool | None = None
    best_resolved: bool | None = None
    refused_patch: str = ""
    evaluation: str = ""
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    notes: tuple[str, ...] = ()
    finished_at: str = ""

    @property
    def is_done(self) -> bool:
        """Whether its execution has ended; an error is retried."""
        return self.status != ERROR

    @property
    def accepted(self) -> bool:
        return self.status == ExecutionStatus.COMPLETED

    @property
    def exit_code(self) -> Exit:
        if not self.is_done:
            return Exit.NOT_ACCEPTED
        return exit_of(ExecutionStatus(self.status), Verdict(self.verdict) if self.verdict else None)


class Results:
    """The newest row of each record, in memory and in the file."""

    def __init__(self, file: BinaryIO, rows: Iterable[ResultRow]) -> None:
        self._file = file
        self.rows = {row.instance_id: row for row in rows}

    def add(self, row: ResultRow) -> None:
        """Append a row; it is on disk when this returns."""
        self._file.write(json.dumps(asdict(row)).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows[row.instance_id] = row


@contextmanager
def open_results(path: Path) -> Generator[Results]:
    """Open the results so far; only this process may append to them. Raises CommandFault."""
    try:
        file = path.open("a+b")
    except OSError as fault:
        raise CommandFault(
            f"cannot write {path}: {fault.strerror}", hint="choose another directory with --output"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandFault(f"another batch is writing {path}") from None
        file.seek(0)
        content = file.read()
        if content and not content.endswith(b"\n"):
            # The last write was cut off: the next row must not be joined to it.
            file.write(b"\n")
        yield Results(file, _rows(content))


def _rows(content: bytes) -> Generator[ResultRow]:
    reader = TypeAdapter(ResultRow)
    for line in content.splitlines():
        try:
            row = reader.validate_json(line)
        except ValidationError:
            continue
        if row.status in (ERROR, *ExecutionStatus) and row.verdict in ("", *Verdict):
            yield row


def write_predictions(path: Path, rows: Iterable[ResultRow], *, model: str, form: str = "list") -> None:
    """Write the patches in a format of SWE-bench's evaluation; without a winner the patch is empty.

    `form` is a `list`, a `dict` by the ids, or `jsonl`, one per line.
    """
    predictions = {
        row.instance_id: {"instance_id": row.instance_id, "model_name_or_path": model, "model_patch": row.model_patch}
        for row in rows
        if row.is_done
    }
    if form == "jsonl":
        text = "".join(f"{json.dumps(prediction)}\n" for prediction in predictions.values())
    else:
        text = json.dumps(predictions if form == "dict" else list(predictions.values()), indent=1) + "\n"
    write_atomically(path, text)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file atomically."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


def histogram(rows: Iterable[ResultRow], *, bad_lines: int, left: int) -> dict[str, int]:
    """The number of records by status, the most frequent first; then records not run and invalid lines."""
    counted = dict(Counter(row.status for row in rows).most_common())
    rest = {"not run": left, "bad line": bad_lines}
    return counted | {name: count for name, count in rest.items() if count}


@dataclass(kw_only=True)
class _Entry:
    progress: WatchedProgress | None = None
    note: str = ""
    since: float = field(default_factory=time.monotonic)


class Board:
    """Shows the progress of a batch."""

    def __init__(self, screen: Screen, *, total: int) -> None:
        self._screen = screen
        self._total = total
        self._done = 0
        self._running: dict[str, _Entry] = {}
        self._live = False

    @contextmanager
    def live(self) -> Generator[None]:
        """Show a live table until the context ends, in a terminal."""
        if self._screen.json or not self._screen.err.is_terminal:
            yield
            return
        self._live = True
        with Live(console=self._screen.err, get_renderable=self.table, refresh_per_second=2, transient=True):
            yield

    def begun(self, instance_id: str, execution_id: str, progress: WatchedProgress, *, existed: bool) -> None:
        """Called when a record's execution was submitted, or found running."""
        entry = self._running.get(instance_id)
        self._running[instance_id] = _Entry(progress=progress, since=entry.since if entry else time.monotonic())
        if entry is None and not self._live:
            self._screen.note(f"{instance_id}: execution {execution_id}{' continues' if existed else ''}")

    def waiting(self, instance_id: str, why: str) -> None:
        """Called when a record waits for the fleet to answer."""
        entry = self._running.setdefault(instance_id, _Entry())
        if entry.note != why:
            entry.note = why
            if not self._live:
                self._screen.note(f"{instance_id}: waiting: {one_line(why, 200)}", style="yellow")

    def ended(self, row: ResultRow) -> None:
        """Called when a record has ended."""
        self._running.pop(row.instance_id, None)
        self._done += 1
        if self._screen.json:
            self._screen.document(asdict(row) | {"exit_code": int(row.exit_code)})
            return
        resolved = {None: "", True: ", resolved", False: ", not resolved"}[row.resolved]
        verdict = f", {row.verdict}" if row.verdict else ""
        why = f": {one_line(row.error, 300)}" if row.error else ""
        line = f"{row.instance_id}: {row.status}{verdict}{resolved} ({row.seconds:.1f} s, {row.tokens:,} tokens){why}"
        self._screen.note(f"[{self._done}/{self._total}] {line}", style=_style(row))

    def table(self) -> Table:
        """The running records."""
        columns = ("record", "state", "agents", "steps", "tokens", "seconds")
        table = empty_table(*columns, caption=f"{self._done} of {self._total} ended")
        for instance_id, entry in self._running.items():
            state = entry.progress.state if entry.progress else None
            agents = [agent for name, agent in state.agents.items() if name != EXECUTION_SUBJECT] if state else []
            add_row(
                table,
                one_line(instance_id, 60),
                one_line(entry.note, 60) or (str(state.status) if state else "submitted"),
                str(len(agents)),
                str(sum(agent.step for agent in agents)),
                f"{sum(agent.usage.total_tokens for agent in agents):,}",
                f"{time.monotonic() - entry.since:.0f}",
            )
        return table


def _style(row: ResultRow) -> str:
    """Green for a verified winner, yellow for an unverified one and for none, red for a failure."""
    return "yellow" if row.verdict == Verdict.UNVERIFIED else _STYLES.get(row.status, "red")


def histogram_table(counted: dict[str, int]) -> Table:
    """The number of records by status, as a table."""
    table = empty_table("ended", "records", "share", "")
    total = sum(counted.values())
    for status, count in counted.items():
        share = count / total
        bar = "█" * round(_BAR_CHARS * share)
        add_row(table, status, str(count), f"{100 * share:.1f} %", bar, style=_STYLES.get(status, ""))
    return table
