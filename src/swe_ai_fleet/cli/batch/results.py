"""What became of a batch's records: a line each, kept beside the batch, so that it can go on where it stopped."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from pydantic import TypeAdapter, ValidationError

from swe_ai_fleet.cli.exits import CommandFault, Exit, exit_of
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.verdict import Verdict

ERROR = "error"
"""Stands for a status where the fleet took no execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How a record ended. `status` is its execution's, or `error`; `resolved` what the hidden tests said, if asked.

    `verdict` is what evidence says of the winner, or of the best where nobody won; empty in rows of older fleets.
    `cost` is in the currency of the fleet's prices, `seconds` what the execution took.
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
    cost: float = 0.0
    seconds: float = 0.0
    resolved: bool | None = None
    evaluation: str = ""
    finished_at: str = ""

    @property
    def done(self) -> bool:
        """Whether an execution has ended; an error is tried again."""
        return self.status != ERROR

    @property
    def accepted(self) -> bool:
        return self.status == ExecutionStatus.COMPLETED

    @property
    def exit_code(self) -> Exit:
        if not self.done:
            return Exit.NOT_ACCEPTED
        return exit_of(ExecutionStatus(self.status), Verdict(self.verdict) if self.verdict else None)


class Results:
    """The newest row of each record, in memory and in the file."""

    def __init__(self, file: BinaryIO, rows: Iterable[Row]) -> None:
        self._file = file
        self.rows = {row.instance_id: row for row in rows}

    def add(self, row: Row) -> None:
        """Keep a row; it is on the disk when this returns."""
        self._file.write(json.dumps(asdict(row)).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows[row.instance_id] = row


@contextmanager
def open_results(path: Path) -> Generator[Results]:
    """The results so far, to be added to by this process alone. Raises CommandFault."""
    try:
        file = path.open("a+b")
    except OSError as fault:
        raise CommandFault(
            f"cannot write {path}: {fault.strerror}", exit_code=Exit.USAGE, hint="--output names another directory"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandFault(f"another batch is writing {path}", exit_code=Exit.USAGE) from None
        file.seek(0)
        content = file.read()
        if content and not content.endswith(b"\n"):
            # The last write was cut off: what comes next must not become part of it.
            file.write(b"\n")
        yield Results(file, _rows(content))


def _rows(content: bytes) -> Generator[Row]:
    reader = TypeAdapter(Row)
    for line in content.splitlines():
        try:
            row = reader.validate_json(line)
        except ValidationError:
            continue
        if row.status in (ERROR, *ExecutionStatus) and row.verdict in ("", *Verdict):
            yield row


def write_predictions(path: Path, rows: Iterable[Row], *, model: str) -> None:
    """The patches in the form that SWE-bench's own evaluation reads; an empty one where nobody won."""
    predictions = [
        {"instance_id": row.instance_id, "model_name_or_path": model, "model_patch": row.model_patch}
        for row in rows
        if row.done
    ]
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(predictions, indent=1) + "\n")
    draft.replace(path)


def histogram(rows: Iterable[Row], *, bad_lines: int, left: int) -> dict[str, int]:
    """How many records ended how, the most frequent first; then what never began or was no record."""
    counted = dict(Counter(row.status for row in rows).most_common())
    rest = {"not run": left, "bad line": bad_lines}
    return counted | {name: count for name, count in rest.items() if count}
