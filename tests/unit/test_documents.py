"""The documents name commands, options, settings, files and tests that exist."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import typer

from swe_ai_fleet.cli.main import app
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.settings import Settings
from tests.documented import BY_HAND, RUN_BY, blocks

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SOURCES = ("", "src/swe_ai_fleet/", "src/swe_ai_fleet/agents/", "src/swe_ai_fleet/tools/")
# What commands of the fleet itself and its tests read beside the settings.
BESIDE = {"FLEET_CONFIG", "FLEET_SERVER", "FLEET_TOKEN", "FLEET_TEST_DISK", "FLEET_TEST_VLLM", "FLEET_VLLM_PYTHON"}


@cache
def _commands() -> dict[str, set[str]]:
    """By name, such as `tools run`, the options of each command."""
    found: dict[str, set[str]] = {}

    def walk(command: object, name: str) -> None:
        for inner_name, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{name} {inner_name}".strip())
        options = [option for one in getattr(command, "params", ()) for option in (*one.opts, *one.secondary_opts)]
        found[name] = {option for option in options if option.startswith("-")}

    walk(typer.main.get_command(app), "")
    return found


@cache
def _tests() -> frozenset[str]:
    texts = (path.read_text() for room in ("tests", "labs") for path in ROOT.glob(f"{room}/**/test_*.py"))
    return frozenset(name for text in texts for name in re.findall(r"def (test_\w+)", text))


@cache
def _in_containers() -> frozenset[str]:
    """What a runner tells the containers of a job."""
    texts = (path.read_text() for path in ROOT.glob("workers/**/*.py"))
    return frozenset(name for text in texts for name in re.findall(r'"(FLEET_[A-Z_]+)"', text))


def _shell_lines(text: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    joined = [block.replace("\\\n", " ") for block in blocks]
    return [line.partition("  #")[0].strip() for block in joined for line in block.splitlines() if line.strip()]


def test_commands_and_their_options_are_there() -> None:
    for path in DOCUMENTS:
        text = path.read_text()
        inline = [quoted for quoted in re.findall(r"`(fleet [^`\n]+)`", text) if "|" not in quoted]
        for line in (*_shell_lines(text), *inline):
            # Other programs may have words that go over several lines.
            if line.split()[0].rpartition("/")[2] != "fleet":
                continue
            words = shlex.split(line)
            if words[1:2] == ["--config"]:
                # The one option that stands before the command.
                del words[1:3]
            if words == ["fleet"]:
                continue
            names = [" ".join(words[1:end]) for end in (4, 3, 2)]
            name = next((one for one in names if one in _commands()), words[1])
            assert name in _commands(), (path, line)
            for word in words[1:]:
                # One with blanks in it is what an option is given.
                assert not word.startswith("-") or " " in word or word in _commands()[name] | {"--help"}, (path, line)


def test_settings_are_there() -> None:
    known = {f"FLEET_{name.upper()}" for name in Settings.model_fields} | BESIDE | _in_containers()
    known |= {f"FLEET_{name.upper()}_FILE" for name, field in Settings.model_fields.items() if not field.repr}
    for kind in load_parts("settings"):
        known |= {f"{kind.model_config['env_prefix']}{name.upper()}" for name in kind.model_fields}
    for path in DOCUMENTS:
        assert set(re.findall(r"\bFLEET_[A-Z_]*[A-Z]\b", path.read_text())) <= known, path


def test_links_and_paths_lead_somewhere() -> None:
    for path in DOCUMENTS:
        text = path.read_text()
        for target in re.findall(r"\]\(([^)#:\s]+)\)", text):
            assert (path.parent / target).exists(), (path, target)
        for quoted in re.findall(r"`((?:tests|docs|src|agents|tools|orchestrator|adapters|domain)/[\w./-]*)`", text):
            assert any((ROOT / start / quoted).exists() for start in SOURCES), (path, quoted)


def test_tests_and_make_targets_are_there() -> None:
    for path in DOCUMENTS:
        text = path.read_text()
        for name in re.findall(r"`(test_\w+)`", text):
            assert name in _tests(), (path, name)
        makefile = (ROOT / "Makefile").read_text()
        for target in re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (path, target)


def test_each_block_that_can_be_run_is_run_by_a_test() -> None:
    for path in DOCUMENTS:
        name = str(path.relative_to(ROOT))
        tests = RUN_BY.get(name, ())
        assert len(tests) == len(blocks(name)), (
            f"{name}: tests/documented.py names for each block the test that runs it"
        )
        for by in set(tests) - {BY_HAND}:
            file, _, test = by.partition("::")
            assert f"def {test}" in (ROOT / "tests" / file).read_text()
