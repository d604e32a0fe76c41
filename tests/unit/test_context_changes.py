"""What was written of projects must be readable for ever: golden payloads of every kind of change, and round trips.

`python tests/unit/test_context_changes.py` writes the golden files of kinds that have none yet. A file that is there is
never rewritten: it is what some log out there holds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import TestSummary as Summary
from swe_ai_fleet.domain.context import (
    Change,
    ChangeBody,
    Decision,
    DecisionAdded,
    DecisionState,
    Phase,
    PhaseChanged,
    Story,
    StoryCreated,
    StoryTask,
    StoryUpdated,
    TaskCreated,
    TaskState,
    WorkRecord,
    WorkRecorded,
)
from swe_ai_fleet.domain.task import Role

GOLDEN = Path(__file__).parent / "golden_changes"
AT = "2026-01-02T03:04:05.678+00:00"
BODIES: tuple[ChangeBody, ...] = (
    StoryCreated(
        story=Story(
            story_id="S-1",
            title="Gr\u00fc\u00dfe",
            description="Say hello.",
            acceptance_criteria=("it greets", "it parts"),
            case_id="C-1",
            phase=Phase.DESIGN,
            notes={"api": "v2"},
            created_at=AT,
            updated_at=AT,
        )
    ),
    TaskCreated(
        task=StoryTask(
            task_id="T-2",
            story_id="S-1",
            title="Greet",
            description="In German.",
            role=Role.QA,
            state=TaskState.IN_PROGRESS,
            depends_on=("T-1",),
            created_at=AT,
            updated_at=AT,
        )
    ),
    DecisionAdded(
        decision=Decision(
            decision_id="D-2",
            story_id="S-1",
            title="gRPC",
            rationale="One contract.",
            alternatives=("REST: two contracts",),
            state=DecisionState.PROPOSED,
            decided_by="ana",
            supersedes="D-1",
            roles=(Role.ARCHITECT, Role.DEV),
            task_ids=("T-2",),
            created_at=AT,
        )
    ),
    PhaseChanged(phase=Phase.PLAN, reason="wrong problem", by="bo"),
    StoryUpdated(
        task_id="T-2",
        title="Greet all",
        description="Everybody.",
        acceptance_criteria=("all are greeted",),
        state=TaskState.DROPPED,
        notes={"api": ""},
    ),
    WorkRecorded(
        record=WorkRecord(
            execution_id="e-1",
            task_id="T-2",
            story_id="S-1",
            case_id="C-1",
            plan_id="P-1",
            kind="orchestrate",
            role="QA",
            repository="https://example.org/repo.git",
            instruction="Greet.",
            status="completed",
            summary="Done.",
            commits=("c" * 40,),
            branch="fleet/T-2",
            files_changed=("a.py",),
            operations={"files_edit_file": 2},
            tests=Summary(passed=9, failed=1, errors=1, skipped=2, duration_ms=321, failing=("t.py::t",)),
            checks={"lint": "passed"},
            parent_execution_id="e-0",
            usage=Usage(prompt_tokens=100, completion_tokens=20, model_calls=3, tool_calls=2, duration_ms=9, cost=0.5),
            duration_ms=4500,
            ended_at=AT,
        )
    ),
)


def change(body: ChangeBody) -> Change:
    version = 0 if isinstance(body, WorkRecorded) else 7
    return Change(tenant="acme", story_id="S-1", version=version, at=AT, body=body)


def test_every_kind_of_change_has_a_golden_file() -> None:
    kinds = {body.type for body in BODIES}
    assert len(BODIES) == len(get_args(ChangeBody))
    assert {path.stem for path in GOLDEN.glob("*.json")} == kinds


@pytest.mark.parametrize("body", BODIES, ids=[body.type for body in BODIES])
def test_golden_changes_are_read_as_they_were_meant(body: ChangeBody) -> None:
    stored = (GOLDEN / f"{body.type}.json").read_bytes()
    assert from_json(Change, stored) == change(body)
    assert type(from_json(Change, stored).body) is type(body)
    # Fields may have been added since: what was written then is still written.
    assert _within(json.loads(stored), json.loads(to_json(change(body))))


def _within(old: object, new: object) -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and _within(value, new[key]) for key, value in old.items())
    return old == new


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for one in BODIES:
        path = GOLDEN / f"{one.type}.json"
        if not path.exists():
            path.write_text(json.dumps(json.loads(to_json(change(one))), indent=2) + "\n")
