"""`fleet batch` as its users run it: interrupted, gone on with, evaluated."""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.cli.client import connect
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.conftest import FleetUnderTest
from tests.e2e.test_cli import at_work
from tests.fleet_command import SECONDS, Shell, ended
from tests.scripts import FAILING, HELLO, HELLO_FILES, SLEEP

HIDDEN_TESTS = """\
diff --git a/test_hidden.py b/test_hidden.py
new file mode 100644
--- /dev/null
+++ b/test_hidden.py
@@ -0,0 +1,5 @@
+import utils
+
+
+def test_greeting():
+    assert utils.hello_world() == "Hello, World!"
"""


def documents(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
async def test_a_batch_is_interrupted_gone_on_with_and_evaluated(
    fleet: FleetUnderTest, model_server: ScriptedModelServer, tmp_path: Path
) -> None:
    name = f"b{uuid.uuid4().hex[:6]}"
    where = make_repository(tmp_path / "clones/acme__widgets", HELLO_FILES)
    commit = git(where, "rev-parse", "HEAD")
    (where / "utils.py").write_text("what lies about is no part of the commit")
    swe_bench = {
        "instance_id": "acme__widgets-1", "repo": "acme/widgets", "base_commit": commit, "problem_statement": HELLO,
        "patch": "the solution", "test_patch": HIDDEN_TESTS, "FAIL_TO_PASS": '["test_hidden.py::test_greeting"]',
        "PASS_TO_PASS": '["test_utils.py::test_one"]',
    }  # fmt: skip
    ours = {"repo": "acme/widgets", "commit": commit}
    file = tmp_path / f"{name}.jsonl"
    wrong, long = ({"task_id": "wrong", "task": f"{FAILING} Greet."}, {"task_id": "long", "task": SLEEP})
    records = [swe_bench, wrong | ours, "no record", long | ours]
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    shell = Shell(home=fleet.settings.home, model_url=model_server.url)
    command = ("batch", str(file), "--repo-root", str(tmp_path / "clones"), "--agents", "1", "--stagger", "0")
    results, predictions = tmp_path / f"{name}.results.jsonl", tmp_path / f"{name}.preds.json"

    process = await shell.start(*command, "--json", "--parallel", "3")
    async with connect(fleet.running.address, fleet.running.token) as client:
        execution_id = await at_work(client, f"batch-{name}-long")
        async with asyncio.timeout(SECONDS):
            while len(documents(results.read_text())) < 2:
                await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        first = await ended(process)
        *rows, summary = documents(first.out)
        assert first.code == summary["exit_code"] == 4, first.err
        statuses = {row["instance_id"]: row["status"] for row in rows}
        assert statuses == {"acme__widgets-1": "completed", "wrong": "no_winner"}
        assert summary["records"] == {"completed": 1, "no_winner": 1, "not run": 1, "bad line": 1}
        assert summary["bad_lines"][0]["line"] == 3
        made = {one["instance_id"]: one["model_patch"] for one in json.loads(predictions.read_text())}
        assert "+def hello_world" in made["acme__widgets-1"] and made["wrong"] == ""
        assert (await client.execution(execution_id)).finished_at_ms == 0
        await client.cancel(execution_id, "seen enough")

    # The same again, with evaluation: what has ended is not run again, what goes on is found, a new one is tried.
    with file.open("a") as more:
        more.write(json.dumps({"task_id": "pictured", "task": HELLO, "image": "org/widgets:1"} | ours))
    ran = await shell.fleet(*command, "--evaluate", COLUMNS="160")
    assert ran.code == 1, ran.err
    out, err = ran.out, ran.err
    assert "1 of 4 records have ended before" in err and "line 3: not a JSON object" in err
    assert "acme__widgets-1: completed, verified, resolved" in err
    assert f"long: execution {execution_id} continues" in err
    assert "resolved by the hidden tests: 1 of 1" in out and "cancelled" in out
    assert "not run: pictured: needs the image org/widgets:1: deliberate.environment.container_image: " in out
    assert any(line.split()[:4] == ["verified", "1", "0", "0"] for line in out.splitlines()), out
    kept = documents(results.read_text())
    assert [row["execution_id"] for row in kept if row["instance_id"] == "long"] == [execution_id]
    assert len({row["execution_id"] for row in kept if row["execution_id"]}) == 3
    assert git(where, "branch", "--list") == "* main"


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
