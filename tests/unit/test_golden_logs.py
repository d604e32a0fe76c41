"""Whole logs of every version so far, as they stood on NATS: today's code reads them, and folds them to the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.event import Event, StoredEvent
from swe_ai_fleet.domain.execution import ExecutionState, advance, fold
from swe_ai_fleet.watching.events import Chains
from tests.tables import table

LOGS = Path(__file__).parent / "golden_logs"


def folded(lines: Sequence[str]) -> dict[str, object]:
    """What the events of one execution come to, in words that no version changes."""
    state: ExecutionState | None = None
    chains = Chains()
    events = [
        StoredEvent(sequence=sequence, event=from_json(Event, line.encode()))
        for sequence, line in enumerate(lines, start=1)
    ]
    for stored in events:
        state = advance(state, stored)
        chains.take(stored)
    assert state is not None
    assert fold(events) == state, "a state that is looked at once is the one that is looked at after each event"
    verdicts = chains.verdicts()
    assert all(verdict.intact for verdict in verdicts), verdicts
    return {
        "events": len(lines),
        "status": str(state.status),
        "task": state.task.task_id,
        "description": state.task.description,
        "winner": state.winner_id,
        "told": state.result_published,
        "approvals": sorted(str(one.decision) for one in state.resolutions.values()),
        "chains": {f"{one.agent_id}/{one.run}": one.head for one in verdicts},
    }


WHOLE = [(path.parent.name, path.stem) for path in sorted(LOGS.glob("v*/*.jsonl"))]


def test_there_is_a_log_of_every_version() -> None:
    assert {"v0.1.0"} <= {version for version, _ in WHOLE}
    assert {name for _, name in WHOLE} >= {"orchestrated", "asked", "no_winner"}


@table(("version", "name"), WHOLE)
def test_an_old_log_is_read_and_comes_to_the_same(version: str, name: str) -> None:
    expected = json.loads((LOGS / version / "folded.json").read_text(encoding="utf-8"))[name]
    lines = (LOGS / version / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    assert folded(lines) == expected
    # A log that was cut must not look like the whole one.
    assert folded(lines[:-3]) != expected
