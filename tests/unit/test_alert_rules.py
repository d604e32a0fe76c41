"""Runbooks, and alerts that weigh several series where they have to fire and where not, evaluated by `promtool`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.promql import named

ROOT = Path(__file__).parents[2]
_RULES = ROOT / "deploy" / "observability" / "prometheus" / "alerts.yaml"
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _rules() -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Alerts, and what recording rules record, by name."""
    rules = [rule for group in yaml.safe_load(_RULES.read_text())["groups"] for rule in group["rules"]]
    alerts = {rule["alert"]: rule for rule in rules if "alert" in rule}
    records = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    assert len(rules) == len(alerts) + len(records)
    return alerts, records


def test_every_alert_is_an_expression_and_says_what_to_do() -> None:
    rules, records = _rules()
    used = {name for rule in rules.values() for name in re.findall(r"fleet:\w+:\w+", rule["expr"])}
    assert used == set(records), "what is recorded is used"
    assert len(rules) >= 20
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
