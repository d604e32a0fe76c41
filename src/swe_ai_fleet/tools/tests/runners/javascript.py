"""npm packages: which runner a test script starts, and how that one is asked for a report and a selection."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath

from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.tests.runners.detection import test_script
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.plan import Plan, Selection, not_installed
from swe_ai_fleet.tools.tests.runners.values import json_object, mapping

_ABSENT = not_installed("npm", "Node.js and npm")
_RUNNERS = frozenset({"jest", "vitest", "mocha", "ava", "tape", "react-scripts"})
_WRAPPERS = frozenset({"npx", "c8", "nyc", "cross-env", "env"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.S)
_DYNAMIC = re.compile(r"[|&<>()`$;]|\*|\?")
_NODE_TEST = re.compile(r"(?:test|test-.+|.+[.-]test|.+_test)\.[cm]?[jt]s")
_VALUED = frozenset(
    {"-r", "--require", "--import", "--loader", "--experimental-loader", "-c", "--config", "-C", "--conditions"}
)
_MAX_FOLLOWED = 3
_MAX_NODE_FILES = 500
_VARIABLES = {"npm_config_update_notifier": "false", "npm_config_fund": "false", "npm_config_audit": "false"}
# npm itself puts these directories first; a runner that is started without npm must find its own there.
_WITH_BINARIES = 'PATH="$PWD/node_modules/.bin:$PATH"; export PATH; exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A package's test script: its name, the runner in its last command, that command's words.

    `alone` says that the script is that one plain command, with nothing before it.
    """

    name: str
    runner: str
    words: tuple[str, ...]
    alone: bool


def npm_plan(inventory: Inventory, root: str, selection: Selection) -> Plan:
    """How to run a package's tests; by its own script, with a report where the runner is known.

    Args:
        root: The package's directory, relative to the workspace.

    Raises:
        ToolFailure: No test script, or a selection that the script's runner cannot be given.
    """
    script = read_script(inventory.text("package.json" if root == "." else f"{root}/package.json"))
    paths = [_below(path, root) for path in selection.paths]
    options: tuple[str, ...] = ()
    variables = dict(_VARIABLES)
    if script.runner == "node":
        paths = [file for path in paths for file in _node_files(inventory, root, path)]
    chosen = _choosing(script.runner, selection, paths, inventory, root)
    run = ("npm", "test") if script.name == "test" else ("npm", "run", script.name)
    told = (*run, "--", *chosen) if chosen else run
    argv = (*run, "--silent", *(("--", *options, *chosen) if options or chosen else ()))
    if selection.some and script.runner == "node" and not script.alone:
        raise ToolFailure(
            "the package's test script does more than start `node --test`, so it takes no paths or keyword from here: "
            "call it without them, or select with shell_run_command"
        )
    if selection.some and script.alone and (script.runner == "node" or len(script.words) > len(_options(script.words))):
        # The script names its tests itself: more names would add to them, not choose among them.
        words = _options(script.words)
        told = (*words, *chosen)
        argv = ("sh", "-c", _WITH_BINARIES, "sh", *words, *options, *chosen)
    return Plan(
        framework=script.runner or "npm",
        argv=argv,
        told=told,
        absent=_ABSENT,
        cwd=root,
        variables=variables,
        stream="output",
    )


def read_script(package: str) -> Script:
    """The test script of a package.json. Raises ToolFailure where there is none."""
    text, name = test_script(package), "test"
    if not text:
        raise ToolFailure("package.json has no test script; use tests_run, or shell_run_command with its own command")
    scripts = mapping(json_object(package).get("scripts"))
    for _ in range(_MAX_FOLLOWED):
        words = _words(text)
        followed = words[2] if len(words) == 3 and words[:2] in (["npm", "run"], ["yarn", "run"]) else ""
        next_text = scripts.get(followed) if followed else None
        if not isinstance(next_text, str):
            break
        text, name = next_text, followed
    return _script(name, text)


def _script(name: str, text: str) -> Script:
    parts = re.split(r"&&|;", text)
    last = parts[-1]
    words = _words(last)
    plain = len(parts) == 1 and not _DYNAMIC.search(last)
    while words and (_ASSIGNMENT.fullmatch(words[0]) or PurePosixPath(words[0]).name in _WRAPPERS):
        # With what these set the runner may behave otherwise: it is not started without them.
        plain = plain and PurePosixPath(words[0]).name == "npx"
        words = words[1:]
    runner = PurePosixPath(words[0]).name if words and not re.search(r"[|&<>()`]", last) else ""
    if runner == "node" and "--test" not in words:
        runner = ""
    if runner not in (*_RUNNERS, "node"):
        runner = ""
    if runner == "react-scripts":
        runner, plain = ("jest", False) if words[1:2] == ["test"] else ("", False)
    return Script(name=name, runner=runner, words=tuple(words), alone=plain)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _options(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words without names of tests: the program, a subcommand, options and their values."""
    kept = list(words[:1])
    rest = list(words[1:])
    if kept and PurePosixPath(kept[0]).name == "vitest" and rest[:1] in (["run"], ["watch"], ["dev"]):
        rest = rest[1:]
        kept.append("run")
    while rest:
        word = rest.pop(0)
        if word.startswith("-") and word != "--":
            kept.append(word)
            if word in _VALUED and rest:
                kept.append(rest.pop(0))
    return tuple(kept)


def _choosing(runner: str, selection: Selection, paths: list[str], inventory: Inventory, root: str) -> tuple[str, ...]:
    if not selection.some:
        return ()
    word = selection.keyword
    operands = [f"./{path}" if path.startswith(("-", "@")) else path for path in paths]
    match runner:
        case "jest":
            files = all(_above(path, root) in inventory.files for path in paths)
            names = ("--runTestsByPath", *operands) if files else tuple(f"/{_literal(path)}" for path in paths)
            return ((f"--testNamePattern={word}",) if word else ()) + (names if paths else ())
        case "vitest":
            return ((f"--testNamePattern={word}",) if word else ()) + tuple(operands)
        case "mocha":
            return ((f"--grep={word}",) if word else ()) + (("--recursive", *operands) if operands else ())
        case "ava":
            return ((f"--match=*{word}*",) if word else ()) + tuple(operands)
        case "node":
            return ((f"--test-name-pattern={word}",) if word else ()) + tuple(operands)
        case _:
            raise ToolFailure(
                "the package's test script starts no runner that can be given paths or a keyword from here: "
                "call it without them, or select with shell_run_command"
            )


def _node_files(inventory: Inventory, root: str, path: str) -> list[str]:
    """The test files in a directory, as node itself would find them: newer ones take names of files only."""
    place = _above(path, root)
    if place in inventory.files:
        return [path]
    prefix = "" if place == "." else f"{place}/"
    found = sorted(
        _below(file, root)
        for file in inventory.files
        if file.startswith(prefix)
        and (_NODE_TEST.fullmatch(PurePosixPath(file).name) or "test" in PurePosixPath(file).parts[:-1])
        and PurePosixPath(file).suffix in (".js", ".cjs", ".mjs")
    )
    if not found:
        raise ToolFailure(f"there are no test files in {path!r}")
    return found[:_MAX_NODE_FILES]


def _literal(path: str) -> str:
    """A path as a regular expression that matches itself."""
    return re.sub(r"([.*+?^${}()|\[\]\\])", r"\\\1", path)


def _below(path: str, root: str) -> str:
    return path if root == "." else path.removeprefix(root).removeprefix("/") or "."


def _above(path: str, root: str) -> str:
    return path if root == "." else root if path == "." else f"{root}/{path}"
