"""An execution as it happens: a table that lives in the terminal, plain lines, or JSON lines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.live import Live
from rich.table import Table

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.speech import TEXT_DELTA, Speech
from swe_ai_fleet.cli.tables import plain_table
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT, StoredEvent
from swe_ai_fleet.domain.execution import AgentProgress, ExecutionState, advance
from swe_ai_fleet.watching.events import moment, stored_event
from swe_ai_fleet.watching.narration import narrate

Show = Callable[[pb.ExecutionEvent], None]


class Progress:
    """What a watcher has seen so far.

    Args:
        now: Seconds since the epoch, for the time that running agents have taken.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.state: ExecutionState | None = None
        self._now = now
        self._spans: dict[str, tuple[float, float]] = {}

    def add(self, event: pb.ExecutionEvent) -> StoredEvent | None:
        """Take one event in; None where it is of a kind, or in a form, that this version cannot read."""
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
        """A row an agent: name, step, last tool and its outcome, tokens, seconds, state."""
        state = self.state
        if state is None:
            return []
        agents = [agent for name, agent in sorted(state.agents.items()) if name != EXECUTION_SUBJECT]
        return [
            (
                agent.agent_id,
                str(agent.step),
                f"{agent.last_tool} {agent.last_outcome}".strip(),
                f"{agent.usage.total_tokens:,}",
                f"{self._seconds(agent):.0f}",
                _standing(state, agent),
            )
            for agent in agents
        ]

    def table(self) -> Table:
        return plain_table(("agent", "step", "last tool", "tokens", "seconds", "state"), self.rows())

    def _seconds(self, agent: AgentProgress) -> float:
        first, last = self._spans.get(agent.agent_id, (0.0, 0.0))
        return max(0.0, (self._now() if agent.status == "running" and first else last) - first)


async def follow(
    client: FleetClient, execution_id: str, progress: Progress, show: Show, *, text: bool = False
) -> ExecutionState:
    """Show an execution's events until it ends, with `text` also what models say in between; its state then."""
    async for event in client.events(execution_id, include_text=text):
        show(event)
    if progress.state is None:
        raise CommandFault(f"execution {execution_id} has no events", exit_code=Exit.NOT_ACCEPTED)
    return progress.state


@contextmanager
def view(screen: Screen, progress: Progress, *, json_lines: bool = False) -> Generator[Show]:
    """What to call with each event, for as long as the context lasts. It keeps `progress` up to date."""
    speech = Speech()
    if screen.json:

        def quietly(event: pb.ExecutionEvent) -> None:
            progress.add(event)
            if json_lines:
                screen.document(event_document(event))

        yield quietly
    elif screen.err.is_terminal:
        with Live(console=screen.err, get_renderable=progress.table, refresh_per_second=4, transient=True):
            yield lambda event: _narrate(screen, progress, speech, event, brief=True)
    else:
        yield lambda event: _narrate(screen, progress, speech, event, brief=False)


def event_document(event: pb.ExecutionEvent) -> dict[str, object]:
    """An event as a JSON line."""
    return {
        "sequence": event.sequence,
        "event_id": event.event_id,
        "execution_id": event.execution_id,
        "task_id": event.task_id,
        "agent_id": event.agent_id,
        "type": event.type,
        "at": moment(event.at_ms),
        "payload": json.loads(event.payload_json),
    }


def _narrate(screen: Screen, progress: Progress, speech: Speech, event: pb.ExecutionEvent, *, brief: bool) -> None:
    if event.type == TEXT_DELTA:
        for line in speech.hear(event):
            screen.note(line)
        return
    for line in speech.rest(event.agent_id):
        screen.note(line)
    stored = progress.add(event)
    line = narrate(stored, brief=brief) if stored else ""
    if line:
        clock = datetime.fromtimestamp(event.at_ms / 1000, UTC).astimezone().strftime("%H:%M:%S")
        screen.note(f"{clock} {line}", style="")


def _standing(state: ExecutionState, agent: AgentProgress) -> str:
    """Where an agent and what it left stand, in a word or two."""
    report = state.reports.get(agent.agent_id)
    if report is not None:
        return "checked: accepted" if report.accepted else "checked: not accepted"
    if agent.agent_id in state.candidates:
        return "being checked"
    return agent.stop_reason or agent.status
