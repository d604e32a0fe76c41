"""`fleet batch` as its users run it: interrupted, gone on with, evaluated."""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.testing import ScriptedModelServer
from tests.conftest import FleetUnderTest
from tests.fleet_command import SECONDS, Shell, ended


def documents(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


VERDICTS = {
    "fleet-examples/clamp": ("unverified", False),
    "fleet-examples/count-lines": ("unverified", True),
    "fleet-examples/median": ("refuted", False),
    "fleet-examples/slug": ("unverified", False),
    "fleet-examples/totals": ("unverified", True),
}


@pytest.mark.slow  # quick: extensions/batch/test_benchmarks.py
async def test_a_benchmark_is_killed_gone_on_with_and_reported(
    fleet: FleetUnderTest, model_server: ScriptedModelServer, tmp_path: Path
) -> None:
    name = f"h{uuid.uuid4().hex[:6]}"
    shell = Shell(home=fleet.settings.home, model_url=model_server.url, directory=Path.cwd())
    command = ("batch", "examples/harbor", "--name", name, "--output", str(tmp_path), "--agents", "1", "--evaluate")
    results = tmp_path / f"{name}.results.jsonl"

    process = await shell.start(*command, "--parallel", "1", "--stagger", "0")
    async with asyncio.timeout(SECONDS):
        while not results.exists() or len(documents(results.read_text())) < 2:
            assert process.returncode is None
            await asyncio.sleep(0.05)
    process.kill()
    assert (await ended(process)).code == -signal.SIGKILL
    assert len(documents(results.read_text())) < len(VERDICTS)

    ran = await shell.fleet(*command, "--parallel", "2", COLUMNS="160")
    rows = {row["instance_id"]: row for row in documents(results.read_text())}
    assert {task: (row["verdict"], row["best_resolved"]) for task, row in rows.items()} == VERDICTS, ran.err
    assert len(documents(results.read_text())) == len(VERDICTS) and "of 5 records have ended before" in ran.err
    assert "resolved by the hidden tests: 2 of 5" in ran.out
    lines = [line.split() for line in ran.out.splitlines()]
    for line in (["verified", "0", "0", "0"], ["unverified", "2", "2", "0"], ["refuted", "0", "1", "0"]):
        assert any(one[:4] == line for one in lines), ran.out
    report = json.loads((tmp_path / f"{name}.report.json").read_text())
    assert report["agreement_rate"]["passed"] == report["agreement_rate"]["of"] == 1
    assert report["tokens"] == sum(row["tokens"] for row in rows.values()) > 0
