"""Every alert leads to an entry of the runbooks, and no entry leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
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


def commands(command: Any, words: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        return [(" ".join(words), command)]
    return [found for name, one in sorted(command.commands.items()) for found in commands(one, (*words, name))]


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_commands_that_the_runbooks_name_are_there() -> None:
    named = re.findall(r"`fleet ((?:[a-z]+)(?: [a-z]+)?)", RUNBOOKS)
    assert named
    for words in named:
        known = words in COMMANDS or words.split()[0] in {name.split()[0] for name in COMMANDS}
        assert known, words


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_every_option_says_what_it_is_for(name: str) -> None:
    command = COMMANDS[name]
    assert (command.help or "").strip().endswith("."), name
    for parameter in command.params:
        shown = not getattr(parameter, "hidden", False)
        assert not shown or getattr(parameter, "help", None), f"{name}: {parameter.name}"
