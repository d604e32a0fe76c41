"""Shows an execution as it happens: a live table in the terminal, plain lines, or JSON lines.

On request it shows the text of models as it is generated.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.live import Live
from rich.table import Table

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.executions import activity
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.cli.tables import plain_table
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT, StoredEvent
from swe_ai_fleet.domain.execution import ExecutionState, RunningChecks, advance
from swe_ai_fleet.domain.run import AgentProgress
from swe_ai_fleet.domain.text import iso_time
from swe_ai_fleet.watching.events import stored_event
from swe_ai_fleet.watching.narration import BASELINE, REPOSITORY_TESTS, narrate
from swe_ai_fleet.watching.text import one_line

TEXT_DELTA = "text_delta"
_SPEECH_CHARS = 400
SILENT_SECONDS = 30.0
"""After this time without a line, plain output repeats which checks are running."""
_LINE_CHARS = 200


class Speech:
    """Joins the pieces of each agent's generated text to lines."""

    def __init__(self) -> None:
        self._incomplete: dict[str, str] = {}

    def add(self, event: pb.ExecutionEvent) -> list[str]:
        """The lines that a piece completes; the beginning of a reply completes the line before it."""
        piece = json.loads(event.payload_json)
        text, lines = str(piece["text"]), list[str]()
        before = self._incomplete.pop(event.agent_id, "")
        if piece.get("begins") and before:
            lines, before = [before], ""
        *whole, rest = (before + text).split("\n")
        lines += whole
        while len(rest) > _SPEECH_CHARS:
            lines, rest = [*lines, rest[:_SPEECH_CHARS]], rest[_SPEECH_CHARS:]
        if rest:
            self._incomplete[event.agent_id] = rest
        return [f"{event.agent_id} | {line}" for line in lines if line.strip()]

    def rest(self, agent_id: str) -> list[str]:
        """The last line of an agent's model, if it is incomplete."""
        text = self._incomplete.pop(agent_id, "")
        return [f"{agent_id} | {text}"] if text.strip() else []


class WatchedProgress:
    """The state of an execution after the events received so far."""

    def __init__(self) -> None:
        self.state: ExecutionState | None = None
        self._spans: dict[str, tuple[float, float]] = {}

    def add(self, event: pb.ExecutionEvent) -> StoredEvent | None:
        """Apply one event; None where this version cannot read its type or its form."""
        try:
            stored = stored_event(event)
        except ValueError:
            return None
        if stored is None:
            return None
        self.state = advance(self.state, stored)
        at = datetime.fromisoformat(stored.event.at).timestamp()
        first, _ = self._spans.get(event.agent_id, (at, at))
        self._spans = {**self._spans, event.agent_id: (first, at)}
        return stored

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each agent and each running check: name, step, what runs, tokens, seconds, state."""
        state = self.state
        if state is None:
            return []
        agents = [agent for name, agent in sorted(state.agents.items()) if name != EXECUTION_SUBJECT]
        rows = [
            (
                agent.agent_id,
                str(agent.step),
                f"{agent.last_tool} {agent.last_outcome}".strip(),
                f"{agent.usage.total_tokens:,}",
                f"{self._seconds(agent):.0f}",
                _agent_state(state, agent),
            )
            for agent in agents
        ]
        checks = [
            (name or BASELINE, "", checks.command or REPOSITORY_TESTS, "", f"{self._since(checks):.0f}", "checks run")
            for name, checks in state.checking.items()
        ]
        return [*rows, *checks]

    def table(self) -> Table:
        return plain_table(("agent", "step", "what runs", "tokens", "seconds", "state"), self.rows())

    def checks(self) -> str:
        """The running checks as a line: `baseline: python3 -m pytest -q, 42 s`; empty without any."""
        running = self.state.checking.items() if self.state is not None else ()
        return "; ".join(
            f"{name or BASELINE}: {checks.command or REPOSITORY_TESTS}, {self._since(checks):.0f} s"
            for name, checks in running
        )

    def _since(self, checks: RunningChecks) -> float:
        return max(0.0, time.time() - datetime.fromisoformat(checks.since).timestamp())

    def _seconds(self, agent: AgentProgress) -> float:
        first, last = self._spans.get(agent.agent_id, (0.0, 0.0))
        return max(0.0, (time.time() if agent.status == "running" and first else last) - first)


class LiveView:
    """Called with each event of an execution: shows it, and applies it to the progress."""

    def __init__(self, screen: Screen, progress: WatchedProgress, *, json_lines: bool) -> None:
        self._screen = screen
        self._progress = progress
        self._json_lines = json_lines
        self._speech = Speech()
        self._last_line_at = time.monotonic()

    def __call__(self, event: pb.ExecutionEvent) -> None:
        if not self._screen.json:
            self._narrate(event)
            return
        self._progress.add(event)
        if self._json_lines:
            self._screen.document(event_document(event))

    def tick(self) -> None:
        """Print the running checks if plain output had no line for a while; a table shows them anyway."""
        if self._screen.json or self._screen.err.is_terminal or time.monotonic() - self._last_line_at < SILENT_SECONDS:
            return
        if checks := self._progress.checks():
            self._note(one_line(checks, _LINE_CHARS))

    def _narrate(self, event: pb.ExecutionEvent) -> None:
        if event.type == TEXT_DELTA:
            for line in self._speech.add(event):
                self._note(line, style="dim")
            return
        for line in self._speech.rest(event.agent_id):
            self._note(line, style="dim")
        stored = self._progress.add(event)
        line = narrate(stored, brief=self._screen.err.is_terminal) if stored else ""
        if line:
            at = datetime.fromtimestamp(event.at_ms / 1000, UTC).astimezone().strftime("%H:%M:%S")
            self._note(f"{at} {line}")

    def _note(self, line: str, *, style: str = "") -> None:
        self._last_line_at = time.monotonic()
        self._screen.note(line, style=style)


async def follow(
    client: FleetClient, execution_id: str, progress: WatchedProgress, show: LiveView, *, text: bool = False
) -> ExecutionState:
    """Show an execution's events until it ends, with `text` also the text of models; returns the final state."""
    ticking = asyncio.create_task(_tick_regularly(show))
    try:
        async for event in client.events(execution_id, include_text=text):
            show(event)
    finally:
        ticking.cancel()
    if progress.state is None:
        raise CommandFault(f"execution {execution_id} has no events", exit_code=Exit.NOT_ACCEPTED)
    return progress.state


async def _tick_regularly(show: LiveView) -> None:
    while True:
        await asyncio.sleep(SILENT_SECONDS / 6)
        show.tick()


@contextmanager
def view(screen: Screen, progress: WatchedProgress, *, json_lines: bool = False) -> Generator[LiveView]:
    """A view to call with each event; in a terminal it is a live table until the context ends."""
    show = LiveView(screen, progress, json_lines=json_lines)
    if screen.json or not screen.err.is_terminal:
        yield show
        return
    with Live(console=screen.err, get_renderable=progress.table, refresh_per_second=4, transient=True):
        yield show


def event_document(event: pb.ExecutionEvent) -> dict[str, object]:
    return {
        "sequence": event.sequence,
        "event_id": event.event_id,
        "execution_id": event.execution_id,
        "task_id": event.task_id,
        "agent_id": event.agent_id,
        "type": event.type,
        "at": iso_time(event.at_ms),
        "payload": json.loads(event.payload_json),
    }


def _agent_state(state: ExecutionState, agent: AgentProgress) -> str:
    """The state of an agent or its candidate, in a word or two."""
    report = state.reports.get(agent.agent_id)
    if report is not None:
        return report.verdict_word
    if agent.agent_id in state.candidates:
        return "being checked"
    return agent.stop_reason or activity(agent)
