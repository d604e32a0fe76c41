"""The help of every command, and that its examples are commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from scripts.command_pages import commands, manual_page
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.listing import ENVIRONMENT, EXIT_CODES
from swe_ai_fleet.cli.main import ALL_ENTRIES, app
from swe_ai_fleet.settings import Settings

ROOT: Any = typer.main.get_command(app)
EXAMPLES = {words: entry.examples for words, entry in ALL_ENTRIES.items()}
COMMANDS = dict(commands(ROOT))
_BEFORE = re.compile(r"^(?:git [^|]*\| )?(?:[A-Z_]+=\S+ )*")


def parsed(line: str) -> str:
    """The words of the command that a line would run. Raises where it would be refused."""
    program, *words = shlex.split(_BEFORE.sub("", line))
    assert program == "fleet"
    context: Any = ROOT.make_context("fleet", list(words))
    while hasattr(context.command, "commands"):
        name, command, rest = context.command.resolve_command(
            context, [*getattr(context, "_protected_args", ()), *context.args]
        )
        context = command.make_context(name, rest, parent=context)
    return context.command_path.removeprefix("fleet ")


@pytest.mark.parametrize("name", sorted(COMMANDS | EXAMPLES))
def test_help_says_what_a_command_does_and_what_it_takes_and_its_examples_would_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = COMMANDS[name]
    assert re.match(r"[A-Z].*[^.]\.( |$)", command.help), "a sentence"
    for one in command.params:
        assert getattr(one, "hidden", False) or one.help, f"{name}: {one.name} says nothing"
    shown = command.get_help(command.make_context(name, [], resilient_parsing=True))
    monkeypatch.chdir(tmp_path)
    for file in ("tasks.jsonl", "review.yaml", "access.toml"):
        (tmp_path / file).touch()
    assert EXAMPLES[name]
    for example in EXAMPLES[name]:
        assert example in [line.strip() for line in shown.splitlines()]
        assert parsed(example) == name


def test_the_top_help_names_every_exit_code_and_settings_that_exist() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert set(EXIT_CODES) == set(Exit)
    for code, meaning in EXIT_CODES.items():
        assert f"{code}  {meaning}" in shown
    settings = {f"FLEET_{name.upper()}" for name in Settings.model_fields} | {"FLEET_SERVER", "FLEET_TOKEN"}
    for name in ENVIRONMENT:
        assert name in settings
        assert name in shown


HEAVY = {"apsw", "numpy", "yaml", "ray", "nats", "httpx2", "starlette", "uvicorn", "mcp", "jinja2", "aiohttp"} | {
    *("openai", "opentelemetry", "tree_sitter", "rich.traceback", "swe_ai_fleet.tools", "services")
}
FROM_LIST = "import sys, swe_ai_fleet.cli.main as main; sys.argv = ['fleet', *sys.argv[1:]]\n"
LOADED = "try: main.app()\nexcept SystemExit as ended: print('LOADED', ended.code, *sys.modules)"


@pytest.mark.parametrize(
    ("arguments", "code", "ours", "most", "without"),
    [
        ("--help", 0, 15, 200, "pydantic structlog rich.console grpc google.protobuf swe_ai_fleet.cli.command"),
        ("plan --help", 0, 15, 200, "pydantic structlog rich.console grpc google.protobuf swe_ai_fleet.cli.command"),
        ("list --limit 3", 3, 35, 420, "pydantic structlog swe_ai_fleet.domain.event swe_ai_fleet.settings"),
        ("show fix-dates", 3, 65, 560, "structlog swe_ai_fleet.watching.events"),
    ],
)
def test_a_command_loads_its_own_code_alone(
    arguments: str, code: int, ours: int, most: int, without: str, tmp_path: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FROM_LIST + LOADED, *arguments.split()],
        env={"FLEET_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    _, ended, *loaded = ran.stdout.splitlines()[-1].split()
    assert int(ended) == code, ran.stderr
    assert set(loaded).isdisjoint(HEAVY | {*without.split()})
    assert len([name for name in loaded if name.startswith("swe_ai_fleet.")]) <= ours
    assert len(loaded) <= most


def test_the_manual_page_has_every_command_and_nothing_that_roff_would_take_for_a_request() -> None:
    page = manual_page()
    for name in COMMANDS:
        assert f".SS fleet {name}".replace("-", "\\-") in page
    known = {".TH", ".SH", ".SS", ".B", ".I", ".TP", ".PP", ".nf", ".fi", '.\\"'}
    assert {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))} <= known
