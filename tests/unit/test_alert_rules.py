"""Runbooks, and alerts that weigh several series where they have to fire and where not, evaluated by `promtool`."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.promql import named

ROOT = Path(__file__).parents[2]
_RULES = ROOT / "deploy" / "observability" / "prometheus" / "alerts.yaml"
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# What is told each minute: a series with its labels (`instance=a` where none is named) and its value, which stays
# (`7`), grows each minute (`0+1`), or goes as promtool has it (`0+0x110 1+0x190`). First where something is wrong, then
# where nothing is.
_WRONG_AND_WELL: Mapping[str, tuple[str, str]] = {
    "FleetNoProgress": (
        "fleet_executions_running,tenant=t 2; fleet_agent_steps_total,tenant=t 9; "
        "fleet_executions_for_people,tenant=t 1",
        # What waits for a person is no lack of progress.
        "fleet_executions_running,tenant=t 2; fleet_agent_steps_total,tenant=t 9; "
        "fleet_executions_for_people,tenant=t 2",
    ),
    # Three of four late now, and in the hour before; then so only for some minutes, which the hour does not show.
    "FleetFirstStepBudgetBurning": (
        "fleet_queue_wait_seconds_bucket,tenant=t,le=300.0 0+1; fleet_queue_wait_seconds_bucket,tenant=t,le=+Inf 0+4",
        "fleet_queue_wait_seconds_bucket,tenant=t,le=300.0 0+4x110 440+1x190; "
        "fleet_queue_wait_seconds_bucket,tenant=t,le=+Inf 0+4",
    ),
    # Two orchestrators tell the same of the log: ten of twenty failed, not twenty of forty.
    "FleetExecutionsBudgetBurning": (
        "fleet_executions_finished_total,tenant=t,status=failed 0+1; "
        "fleet_executions_finished_total,tenant=t,status=failed,instance=b 0+1; "
        "fleet_executions_finished_total,tenant=t,status=completed 0+1; "
        "fleet_executions_finished_total,tenant=t,status=completed,instance=b 0+1",
        "fleet_executions_finished_total,tenant=t,status=failed 0+1; "
        "fleet_executions_finished_total,tenant=t,status=no_winner 0+99",
    ),
    "FleetAgentRunsLost": (
        "fleet_agent_runs_lost_total,tenant=t 0+1",
        "fleet_agent_runs_lost_total,tenant=t 0+0x108 1+1x2 3+0x180; "
        "fleet_agent_runs_lost_total,tenant=t,instance=b 0+0x108 1+1x2 3+0x180",
    ),
    "FleetModelServerDown": (
        "fleet_model_server_up,endpoint=http://m 0; fleet_model_server_up,endpoint=http://m,instance=b 0",
        "fleet_model_server_up,endpoint=http://m 0; fleet_model_server_up,endpoint=http://m,instance=b 1",
    ),
}
_EVALUATED = "2h"


def _series(situation: str) -> dict[str, str]:
    """The series of a situation in promtool's notation."""
    series: dict[str, str] = {}
    for told in situation.split("; "):
        name, value = told.split(" ", 1)
        metric, *labels = name.split(",")
        by_name = {"instance": "a"} | dict(label.split("=", 1) for label in labels)
        text = ",".join(f'{label}="{of}"' for label, of in by_name.items())
        growth = value if "x" in value else f"{value if '+' in value else f'{value}+0'}x300"
        series[f"{metric}{{{text}}}"] = growth
    return series


def _rules() -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Alerts, and what recording rules record, by name."""
    rules = [rule for group in yaml.safe_load(_RULES.read_text())["groups"] for rule in group["rules"]]
    alerts = {rule["alert"]: rule for rule in rules if "alert" in rule}
    records = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    assert len(rules) == len(alerts) + len(records)
    return alerts, records


def _tried(alert: str, situation: str, *, fires: bool) -> Mapping[str, object]:
    expected = [{"labels": "{}", "value": 1}] if fires else []
    firing = f'count(count by (alertname) (ALERTS{{alertname="{alert}",alertstate="firing"}}))'
    return {
        "name": f"{alert}: {'wrong' if fires else 'well'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in _series(situation).items()],
        "promql_expr_test": [{"expr": firing, "eval_time": _EVALUATED, "exp_samples": expected}],
    }


def test_every_alert_is_an_expression_and_says_what_to_do() -> None:
    rules, records = _rules()
    used = {name for rule in rules.values() for name in re.findall(r"fleet:\w+:\w+", rule["expr"])}
    assert used == set(records), "what is recorded is used"
    assert set(rules) >= set(_WRONG_AND_WELL) and len(rules) >= 20
    for rule in rules.values():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert re.fullmatch(r"\d+[mh]", rule["for"])
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")
        # It is an expression; what is none is noticed.
        named(rule["expr"])
    # Every alert leads to an entry of the runbooks, and no entry leads nowhere.
    wanted = {re.sub(r"(?<!^)(?=[A-Z])", "-", alert).lower() for alert in rules}
    there = anchors(RUNBOOKS)
    assert wanted == {anchor for anchor in there if anchor.startswith("fleet-")}
    assert set(re.findall(r"\]\(#([\w-]+)\)", RUNBOOKS)) <= there
    urls = {rule["annotations"]["runbook_url"] for rule in rules.values()}
    assert urls == {f"https://fleet.example.org/docs/runbooks.md#{name}" for name in wanted}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_what_weighs_several_series_fires_where_something_is_wrong_and_only_there(tmp_path: Path) -> None:
    tests = [
        _tried(alert, situation, fires=fires)
        for alert, (wrong, well) in _WRONG_AND_WELL.items()
        for situation, fires in ((wrong, True), (well, False))
    ]
    written = tmp_path / "tests.yaml"
    written.write_text(yaml.safe_dump({"rule_files": [str(_RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(written)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
