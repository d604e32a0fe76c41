"""What an earlier version left half done, or waiting for people, this one finishes."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_ai_fleet.testing.repositories import git
from tests.fleet_client import bodies
from tests.recorded_store import REPOSITORY, STORES, serving_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("store", STORES, ids=lambda path: path.name)
async def test_tasks_are_finished(store: Path) -> None:
    async with serving_store(store) as site:
        # Both agents were in their third call, which counts as interrupted; what they had done is there.
        entries = [body["entry"] for body in bodies(await site.ended("half-run"), "tool_finished")]
        calls = [(entry["operation"], entry["outcome"]) for entry in sorted(entries, key=lambda entry: entry["seq"])]
        done = [("read_file", "success"), ("append_file", "success"), ("run_command", "interrupted")]
        assert calls == [call for call in done for _ in range(2)]
        assert git(REPOSITORY, "show", "fleet/half-run:utils.py").count("def hello_world") == 1

        for task_id, decision, operation in (
            ("proposed", "APPROVED", "append_file"),
            ("risky", "REJECTED", "run_command"),
        ):
            calls = bodies(await site.resolved(task_id, decision), "tool_finished")
            assert operation in {body["entry"]["operation"] for body in calls}
