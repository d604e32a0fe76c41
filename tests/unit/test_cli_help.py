"""The help of every command, and that its examples are commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from scripts.command_pages import commands
from swe_ai_fleet.cli.main import ALL_ENTRIES, app
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.settings import Settings
from tests.tables import table

HERE = Path(__file__).parents[2]
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


@table("name", sorted(COMMANDS | EXAMPLES))
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


HEAVY = {"apsw", "numpy", "yaml", "ray", "nats", "httpx2", "starlette", "uvicorn", "mcp", "jinja2", "aiohttp"} | {
    *("openai", "opentelemetry", "tree_sitter", "rich.traceback", "swe_ai_fleet.tools", "services")
}
FROM_LIST = "import sys, swe_ai_fleet.cli.main as main; sys.argv = ['fleet', *sys.argv[1:]]\n"
LOADED = "try: main.app()\nexcept SystemExit as ended: print('LOADED', ended.code, *sys.modules)"


@pytest.mark.parametrize(
    ("arguments", "code", "ours", "most", "without"),
    [
        ("--help", 0, 17, 166, "pydantic structlog rich grpc google.protobuf swe_ai_fleet.cli.command"),
        ("list --limit 3", 3, 36, 320, "pydantic structlog rich tomllib swe_ai_fleet.domain.event"),
        ("show fix-dates", 3, 36, 320, "pydantic structlog rich tomllib swe_ai_fleet.domain.event"),
        ("watch fix-dates", 3, 80, 490, "pydantic_settings structlog rich.syntax swe_ai_fleet.settings"),
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


PRODUCT = [path for room in ("src/swe_ai_fleet", "services", "workers") for path in (HERE / room).rglob("*.py")]
OPTIONS = {"--config"} | {
    word for command in COMMANDS.values() for one in command.params for word in (*one.opts, *one.secondary_opts)
}
OTHERS = {"--enable-auto-tool-choice", "--tool-call-parser", "--max-model-len", "--unshallow"}
"""Options of other programs that hints name."""
TEXTS = re.compile(r"""(\b(?:hint|mend)=)?f?(?:"((?:[^"\\\n]|\\.)*)"|'((?:[^'\\\n]|\\.)*)')""")
BESIDE = "FLEET_(?:HOME|CONFIG|SERVER|TOKEN|RUNNER.*|TEST_.*)|.*_X"


def hints() -> Iterator[tuple[str, str, bool]]:
    """Each text of the product that tells a person what to type: where it is, the text, whether it is a hint.

    Texts that go over several lines are joined; what is filled in is an X.
    """
    for path in PRODUCT:
        source = re.sub(r"[\"']\n\s*f?[\"']", "", path.read_text())
        name = str(path.relative_to(HERE))
        for before, double, single in TEXTS.findall(source):
            told = re.sub(r"\{[^{}]*\}", "X", double or single)
            if before or "`fleet " in told or told.startswith("fleet "):
                yield name, told, bool(before)


def test_every_hint_names_commands_options_settings_and_pages_that_exist() -> None:
    words = {name.partition(" ")[0] for name in COMMANDS}
    settings = {f"FLEET_{name.upper()}" for name in Settings.model_fields}
    settings |= {f"{name}_FILE" for name in settings}
    seen, wrong = 0, list[str]()
    for place, text, is_hint in hints():
        lines = re.findall(r"`(fleet [^`]+)`", text)
        lines += [text] if text.startswith("fleet ") and text.split()[1:2] and text.split()[1] in words else []
        for line in lines:
            seen += 1
            parts = re.sub(r" \(or .*| \| .*", "", line).replace("--config X ", "").split()[1:]
            if parts[0] == "plan" and parts[1:2] and parts[1][0] in "'\"XG":
                parts = ["plan", "goal", *parts[1:]]
            known = next((" ".join(parts[:n]) for n in (3, 2, 1) if " ".join(parts[:n]) in COMMANDS), "")
            taken = {word for one in COMMANDS[known].params for word in one.opts} if known else {"--help"}
            given = {part.split("=")[0].strip("[],.") for part in parts if part.startswith("--")}
            below = any(name.startswith(f"{parts[0]} ") for name in COMMANDS) if parts else False
            if not (known or below or parts[0] in {"--help", "COMMAND"}) or not given <= taken | {"--help"}:
                wrong.append(f"{place}: {line}")
        if is_hint:
            named = re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)
            wrong += [f"{place}: {word} in {text!r}" for word in named if word not in OPTIONS | OTHERS]
            pages = re.findall(r"docs/[\w-]+\.\w+", text)
            wrong += [f"{place}: {page}" for page in pages if not (HERE / page).is_file()]
            for word in re.findall(r"FLEET_[A-Z_]*[A-Z]", text):
                if word not in settings and not re.fullmatch(BESIDE, word):
                    wrong.append(f"{place}: {word} in {text!r}")
    assert not wrong, "\n".join(wrong)
    assert seen > 60


def test_a_stop_reason_has_a_place_in_the_documents() -> None:
    page = (HERE / "docs/stop-reasons.md").read_text()
    assert re.findall(r"^## (.+)$", page, re.M) == [str(reason) for reason in StopReason]


def test_the_help_has_every_command_and_the_shell_completes_names_without_their_code() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output.split()
    assert {name.partition(" ")[0] for name in COMMANDS} <= set(shown)
    complete = {"_FLEET_COMPLETE": "complete_bash", "COMP_CWORD": "1", "COMP_WORDS": "fleet re"}
    ran = subprocess.run(
        [sys.executable, "-c", FROM_LIST + LOADED, "fleet"], env=complete, capture_output=True, text=True, check=True
    )
    *words, last = ran.stdout.splitlines()
    assert words == ["replay", "reject", "restore", "recommend"]
    assert "swe_ai_fleet.cli.command" not in last.split()
