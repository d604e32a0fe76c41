"""The help of every command, and that its examples are commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from scripts.command_pages import commands, manual_page
from swe_ai_fleet.cli.examples import ENVIRONMENT, EXAMPLES, EXIT_CODES
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.main import app
from swe_ai_fleet.settings import Settings

ROOT: Any = typer.main.get_command(app)
COMMANDS = dict(commands(ROOT))
_BEFORE = re.compile(r"^(?:git [^|]*\| )?(?:[A-Z_]+=\S+ )*")


def parsed(line: str) -> tuple[str, dict[str, Any]]:
    """The words and the parameters of the command that a line would run. Raises where it would be refused."""
    program, *words = shlex.split(_BEFORE.sub("", line))
    assert program == "fleet"
    context: Any = ROOT.make_context("fleet", list(words))
    while hasattr(context.command, "commands"):
        name, command, rest = context.command.resolve_command(
            context, [*getattr(context, "_protected_args", ()), *context.args]
        )
        context = command.make_context(name, rest, parent=context)
    return context.command_path.removeprefix("fleet "), context.params


def test_every_command_has_examples_and_every_example_a_command() -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()
    assert all(EXAMPLES.values())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_says_what_a_command_does_and_what_it_takes(name: str) -> None:
    command = COMMANDS[name]
    assert re.match(r"[A-Z].*[^.]\.( |$)", command.help), "a sentence"
    for one in command.params:
        assert getattr(one, "hidden", False) or one.help, f"{name}: {one.name} says nothing"
    shown = command.get_help(command.make_context(name, [], resilient_parsing=True))
    for example in EXAMPLES[name]:
        assert example in [line.strip() for line in shown.splitlines()]


@pytest.mark.parametrize(
    ("name", "example"), [(name, line) for name, lines in sorted(EXAMPLES.items()) for line in lines]
)
def test_an_example_is_a_command_that_would_run(
    name: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("tasks.jsonl", "review.yaml", "access.toml"):
        (tmp_path / file).touch()
    found, _ = parsed(example)
    assert found == name


def test_an_example_that_is_wrong_is_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        parsed("fleet status --colour")
    with pytest.raises(Exception, match="Missing parameter"):
        parsed("fleet show")


def test_the_top_help_names_every_exit_code_and_settings_that_exist() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert set(EXIT_CODES) == set(Exit)
    for code, meaning in EXIT_CODES.items():
        assert f"{code}  {meaning}" in shown
    settings = {f"FLEET_{name.upper()}" for name in Settings.model_fields} | {"FLEET_SERVER", "FLEET_TOKEN"}
    for name in ENVIRONMENT:
        assert name in settings
        assert name in shown


def test_the_manual_page_has_every_command_and_nothing_that_roff_would_take_for_a_request() -> None:
    page = manual_page()
    for name in COMMANDS:
        assert f".SS fleet {name}".replace("-", "\\-") in page
    known = {".TH", ".SH", ".SS", ".B", ".I", ".TP", ".PP", ".nf", ".fi", '.\\"'}
    assert {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))} <= known
