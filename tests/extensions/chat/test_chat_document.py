"""docs/chat.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swe_ai_fleet import ChatSession
from swe_ai_fleet.cli.main import app
from swe_ai_fleet.extensions.chat.session import MAX_SHOWN_CHARS, MAX_TURNS
from swe_ai_fleet.settings import Settings

TEXT = (Path(__file__).parents[3] / "docs" / "chat.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_formatting_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [block for block in blocks("python") if "formatting" in block]
    exec(compile(example, "chat.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("*Two cities*\n\n*Days*\n```\ncity  days")


def test_the_library_example_names_what_there_is() -> None:
    (example,) = [block for block in blocks("python") if "ChatSession" in block]
    compile(example, "chat.md", "exec")
    assert ChatSession(session_id="mine", namespaces=["agent:ada"], settings=Settings()).session_id == "mine"


def test_the_commands_have_these_options() -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["chat", "--help"], env={"COLUMNS": "200"}).output
    options = {word for block in blocks("sh") for word in re.findall(r"--[a-z]+", block)}
    assert options >= {"--session", "--namespace", "--once", "--json"}
    for option in options:
        assert option in shown


def test_settings_and_limits_are_the_real_ones() -> None:
    names = set(re.findall(r"FLEET_([A-Z_]+)", TEXT)) - {"HOME"}
    assert names <= {name.upper() for name in Settings.model_fields}
    assert f"{MAX_TURNS} turns" in TEXT and f"{MAX_SHOWN_CHARS:,} characters" in TEXT
