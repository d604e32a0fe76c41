"""A batch as it goes: a table that lives in the terminal, or a line for each beginning and each end."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from rich.live import Live
from rich.table import Table

from swe_ai_fleet.cli.batch.results import Row
from swe_ai_fleet.cli.live import Progress
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import add_row, empty_table
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT
from swe_ai_fleet.domain.verdict import Verdict
from swe_ai_fleet.watching.text import one_line

_BAR_CHARS = 30
_STYLES = {"completed": "green", "no_winner": "yellow"}


@dataclass(kw_only=True)
class _Entry:
    progress: Progress | None = None
    note: str = ""
    since: float = field(default_factory=time.monotonic)


class Board:
    """What a batch shows.

    Args:
        screen: Where.
        total: How many records are to be run.
    """

    def __init__(self, screen: Screen, *, total: int) -> None:
        self._screen = screen
        self._total = total
        self._done = 0
        self._running: dict[str, _Entry] = {}
        self._live = False

    @contextmanager
    def shown(self) -> Generator[None]:
        """Show the table for as long as the context lasts, where there is a terminal."""
        if self._screen.json or not self._screen.err.is_terminal:
            yield
            return
        self._live = True
        with Live(console=self._screen.err, get_renderable=self.table, refresh_per_second=2, transient=True):
            yield

    def begun(self, instance_id: str, execution_id: str, progress: Progress, *, existed: bool) -> None:
        """A record's execution runs, or has been found running."""
        known = self._running.get(instance_id)
        self._running[instance_id] = _Entry(progress=progress, since=known.since if known else time.monotonic())
        if known is None and not self._live:
            self._screen.note(f"{instance_id}: execution {execution_id}{' goes on' if existed else ''}")

    def waiting(self, instance_id: str, why: str) -> None:
        """A record waits for the fleet to answer."""
        entry = self._running.setdefault(instance_id, _Entry())
        if entry.note != why:
            entry.note = why
            if not self._live:
                self._screen.note(f"{instance_id}: waiting: {one_line(why, 200)}", style="yellow")

    def ended(self, row: Row) -> None:
        """A record has ended."""
        self._running.pop(row.instance_id, None)
        self._done += 1
        if self._screen.json:
            self._screen.document(asdict(row) | {"exit_code": int(row.exit_code)})
            return
        resolved = {None: "", True: ", resolved", False: ", not resolved"}[row.resolved]
        verdict = f", {row.verdict}" if row.verdict else ""
        why = f": {one_line(row.error, 300)}" if row.error else ""
        told = f"{row.instance_id}: {row.status}{verdict}{resolved} ({row.seconds:.1f} s, {row.tokens:,} tokens){why}"
        self._screen.note(f"[{self._done}/{self._total}] {told}", style=_style(row))

    def table(self) -> Table:
        """The records under way."""
        columns = ("record", "state", "agents", "steps", "tokens", "seconds")
        table = empty_table(*columns, caption=f"{self._done} of {self._total} ended")
        for instance_id, entry in self._running.items():
            state = entry.progress.state if entry.progress else None
            agents = [agent for name, agent in state.agents.items() if name != EXECUTION_SUBJECT] if state else []
            add_row(
                table,
                one_line(instance_id, 60),
                one_line(entry.note, 60) or (str(state.status) if state else "handed in"),
                str(len(agents)),
                str(sum(agent.step for agent in agents)),
                f"{sum(agent.usage.total_tokens for agent in agents):,}",
                f"{time.monotonic() - entry.since:.0f}",
            )
        return table


def _style(row: Row) -> str:
    """Green for a verified winner, yellow for an unverified one and for none, red for what failed."""
    return "yellow" if row.verdict == Verdict.UNVERIFIED else _STYLES.get(row.status, "red")


def histogram_table(counted: dict[str, int]) -> Table:
    """How many records ended how."""
    table = empty_table("ended", "records", "share", "")
    total = sum(counted.values())
    for status, count in counted.items():
        share = count / total
        bar = "█" * round(_BAR_CHARS * share)
        add_row(table, status, str(count), f"{100 * share:.1f} %", bar, style=_STYLES.get(status, ""))
    return table
