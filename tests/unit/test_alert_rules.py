"""Alerts are expressions that say what to do, and runbooks have an entry for each."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import yaml

from tests.promql import named

ROOT = Path(__file__).parents[2]
_RULES = ROOT / "deploy" / "observability" / "prometheus" / "alerts.yaml"
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_alert_is_an_expression_and_says_what_to_do() -> None:
    every = [rule for group in yaml.safe_load(_RULES.read_text())["groups"] for rule in group["rules"]]
    rules = {rule["alert"]: rule for rule in every if "alert" in rule}
    records = {rule["record"] for rule in every if "record" in rule}
    assert len(every) == len(rules) + len(records)
    used = {name for rule in rules.values() for name in re.findall(r"fleet:\w+:\w+", rule["expr"])}
    assert used == records, "what is recorded is used"
    assert len(rules) >= 20
    if shutil.which("promtool"):
        subprocess.run(["promtool", "check", "rules", _RULES], check=True, timeout=60)
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
