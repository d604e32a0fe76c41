"""Every alert leads to an entry of the runbooks, and no entry leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer.main
import yaml

from swe_ai_fleet.cli.main import app

ROOT = Path(__file__).parents[2]
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_alert_has_an_entry_and_every_entry_an_alert() -> None:
    rules = yaml.safe_load((ROOT / "deploy/observability/prometheus/alerts.yaml").read_text(encoding="utf-8"))
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    assert alerts
    wanted = {re.sub(r"(?<!^)(?=[A-Z])", "-", rule["alert"]).lower() for rule in alerts}
    assert wanted == {anchor for anchor in anchors(RUNBOOKS) if anchor.startswith("fleet-")}
    assert {rule["annotations"]["runbook_url"] for rule in alerts} == {f"docs/runbooks.md#{name}" for name in wanted}


def test_links_lead_somewhere() -> None:
    for page, anchor in re.findall(r"\]\(([\w./-]*)#?([\w-]*)\)", RUNBOOKS):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8") if page else RUNBOOKS
        assert not anchor or anchor in anchors(text), (page, anchor)


def commands(command: Any, words: tuple[str, ...] = ()) -> dict[str, Any]:
    if not hasattr(command, "commands"):
        return {" ".join(words): command}
    parts = [commands(one, (*words, name)) for name, one in sorted(command.commands.items())]
    return {name: one for part in parts for name, one in part.items()}


def test_commands_say_what_they_are_for_and_those_that_the_runbooks_name_are_there() -> None:
    known = commands(typer.main.get_command(app))
    for name, command in known.items():
        assert (command.help or "").strip().endswith("."), name
        for parameter in command.params:
            shown = not getattr(parameter, "hidden", False)
            assert not shown or getattr(parameter, "help", None), f"{name}: {parameter.name}"
    named = re.findall(r"`fleet ((?:[a-z]+)(?: [a-z]+)?)", RUNBOOKS)
    first = {name.split()[0] for name in known}
    assert named and [words for words in named if words not in known and words.split()[0] not in first] == []
