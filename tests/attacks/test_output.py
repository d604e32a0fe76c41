"""What test code prints, what files and addresses hold, made to keep whoever reads it busy.

Each reader is a process of its own, a fork of one that has everything loaded, and the kernel kills it when it has used
its CPU time for a text: a reader whose work grows with the square of a line needs many times as much as there is, one
that looks at each character once next to none.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

import pytest

from swe_ai_fleet.agents.references import Naming, resolve
from swe_ai_fleet.domain.task import EnvironmentSpec, RepoRef, Task, TaskKind
from swe_ai_fleet.environments import Machine, RepositoryFiles, Tooling, detect, digest
from swe_ai_fleet.environments.project_code import project_code
from swe_ai_fleet.orchestrator.evidence import TaskNames, first_tests, parse_patch
from swe_ai_fleet.tools import HttpTool
from swe_ai_fleet.tools.tests import changed_runs, parse_annotations, parse_eslint, parse_format, parse_lines
from swe_ai_fleet.tools.tests.text_reports import recognise

CHARS = 8_000
CPU_SECONDS = 0.3

_PATCH = parse_patch(b"diff --git a/foobar.py b/foobar.py\n--- a/foobar.py\n+++ b/foobar.py\n@@ -1 +1 @@\n-a\n+b\n")
_NAMES = TaskNames(Task(task_id="t", kind=TaskKind.DELIBERATE, description="x", repo=RepoRef(location="/srv/app")))


MANIFEST_SECONDS = 10.0
MEMORY_BYTES = 1024**3
_MANY = 300_000
_LINES = "\n" * _MANY
_MACHINE = Machine(
    default=(3, 11), pythons={(3, 11): "/usr/bin/python3.11"}, pip_requires=">=3.9", programs=frozenset({"node", "npm"})
)
_TOOLING = Tooling(base="/environment", pip="/tools/pip", workspace="/workspace")
_WORKFLOW = ".github/workflows/test.yml"
MANIFESTS = {
    "blank lines of pyproject.toml": ("pyproject.toml", _LINES),
    "blank lines of setup.py": ("setup.py", _LINES),
    "blank lines of setup.cfg": ("setup.cfg", _LINES),
    "blank lines of pytest's settings": ("pytest.ini", f"[pytest]\n{_LINES}"),
    "blank lines of .npmrc": (".npmrc", _LINES),
    "blanks of setup.cfg": ("setup.cfg", " " * _MANY),
    "blanks of Makefile": ("Makefile", " " * _MANY),
    "blanks of requirements.txt": ("requirements.txt", f"a{' ' * _MANY}b"),
    "faults of setup.cfg": ("setup.cfg", "[a]\n" + "=\n" * _MANY),
    "names of many parts": ("pyproject.toml", "[" + "a." * _MANY + "a]\n" + "a = 1\n"),
    "paths without an end": ("pyproject.toml", "backend-path = [" * (_MANY // 16)),
    "a number without an end": ("pyproject.toml", "a = " + "1" * 5_000),
    "brackets in a requirement": ("requirements.txt", "a ; " + "(" * _MANY),
    "commands without an end": ("Makefile", "test:\n" + "".join(f"\tpip install a{n}\n" for n in range(_MANY // 10))),
    "variables that name themselves": ("Makefile", f"A = {'$(A)' * 60}\ntest:\n\t$(A)\n"),
    "values that name each other": ("tox.ini", "[tox]\nenvlist = a\n[x]\n" + "a =\n" + "  {[x]a}{[x]a}\n" * 3_000
                                    + "[testenv]\ncommands = {[x]a}\n"),
    "a range without an end": ("tox.ini", "[tox]\nenvlist = py{1-999999999}\n[testenv]\ncommands = pytest\n"),
    "choices of nothing": ("tox.ini", f"[tox]\nenvlist = {'{,}' * 40}\n[testenv]\ncommands = pytest\n"),
    "lists in lists": (_WORKFLOW, "[" * _MANY),
    "lists in lists, by lines": (_WORKFLOW, "- " * _MANY),
    "keys in keys": (_WORKFLOW, "{a," * (_MANY // 3)),
    "aliases of aliases": (_WORKFLOW, "a: &a [1]\n" + "".join(
        f"{after}: &{after} [{', '.join([f'*{before}'] * 20)}]\n"
        for before, after in zip("abcdefg", "bcdefgh", strict=True)
    )),
}  # fmt: skip


def _running(function: str) -> subprocess.CompletedProcess[str]:
    program = f"from {__name__} import {function}; {function}()"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def recorded_address(text: str) -> object:
    """The address of a request as the audit shows it: a model's, or where a server sends it on to."""
    return HttpTool.__new__(HttpTool).recorded({"url": text})


def references(text: str) -> object:
    """What a request refers to in an answer of the same text."""
    naming = Naming(1)
    naming.answer(text)
    naming.person(text, naming.things)
    return resolve(text, naming.things, turn=2)


READERS: dict[str, Callable[[str], object]] = {
    "make": recognise,
    "tap": lambda text: recognise(f"TAP version 14\n{text}"),
    "eslint": lambda text: parse_eslint(text, "/w"),
    "lint": lambda text: parse_lines(text, "/w"),
    "annotations": lambda text: parse_annotations(text, "/w"),
    "formatters": lambda text: parse_format(text, "/w"),
    "diff": lambda text: list(changed_runs(text)),
    "imports of tests": lambda text: first_tests(_PATCH, _NAMES, ["test_a.py"], lambda _: text),
    "addresses": recorded_address,
    "references": references,
    # As it was: digits, any number of them, then perhaps a point, and again digits. Lines are twice as long for it, so
    # that it takes four times as long: it must be too slow on a fast machine as well.
    "control": lambda text: [_EARLIER.fullmatch(line + line[-1:] * CHARS) for line in text.split("\n")],
}


BEGINNINGS = (
    *("", "1 passed in ", "FAILED a[", "ok 1 - ", "--- FAIL: ", "error[E1]: ", "a.py:1:", "@@ -1 ", "http://"),
)
UNITS = (
    *("1", "=", " ", "\x1b[", "\x1b[0", "[", "(", '"', "\\", "1 "),
    *("1 passed, ", " - ", "a.", "a:1:", "import ", "@"),
)

_EARLIER = re.compile(r"=*\s*(no tests ran|\d+ [a-z][a-z0-9 ,]*) in (\d+\.?\d*)s(?: \([\d:]+\))?\s*=*")


def texts() -> dict[str, str]:
    """Long lines and many long lines, of one thing each."""
    found: dict[str, str] = {}
    for beginning in BEGINNINGS:
        for unit in UNITS:
            name = f"{beginning!r} and {unit!r}"
            found[f"one line of {name}"] = beginning + unit * (CHARS // len(unit))
    for unit in UNITS:
        line = unit * (CHARS // 8 // len(unit)) + "\n"
        found[f"lines of {unit!r}"] = line * 8
    return found


def within(seconds: float, read: Callable[..., object], texts: Mapping[str, object], file: TextIO) -> None:
    """Read every text; what is too slow ends this process by a signal, its name written before."""
    for name, text in texts.items():
        print(name, file=file, flush=True)
        # Time that this process computes, not time that goes by: other load on the machine is none of it.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        read(text)
        signal.setitimer(signal.ITIMER_PROF, 0)


def read_all(reader: str, names: Path) -> None:
    with names.open("w") as file:
        within(CPU_SECONDS, READERS[reader], texts(), file)


def read_by_each(directory: str) -> None:
    """Have each reader read in a fork of this process, and print how each of them ended."""
    ends: dict[str, int | None] = {}
    for reader in READERS:
        process = multiprocessing.get_context("fork").Process(target=read_all, args=(reader, Path(directory, reader)))
        process.start()
        process.join()
        ends[reader] = process.exitcode
    print(json.dumps(ends))


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """For each reader how its process ended, and the text that it read last."""
    directory = tmp_path_factory.mktemp("readings")
    program = f"from {__name__} import read_by_each; read_by_each({str(directory)!r})"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    return {
        reader: (code, (directory / reader).read_text().splitlines()[-1])
        for reader, code in json.loads(done.stdout).items()
    }


def test_no_output_keeps_its_reader_busy(readings: dict[str, tuple[int, str]]) -> None:
    assert {name: text for name, (code, text) in readings.items() if code and name != "control"} == {}


SHOWN = {
    "https://me:secret@host/x": "https://[masked]@host/x", "https://secret@host": "https://[masked]@host",
    "https:me:secret@host/x": "https:[masked]@host/x", "https:\\\\me:secret@host": "https:\\\\[masked]@host",
    "https:///me:secret@host": "https:///[masked]@host", "me:secret@host/x@y": "me:[masked]@host/[masked]@y",
    "https://host/@scope/package": "https://host/@scope/package", "https://a:secret@b@host/": "https://[masked]@host/",
}  # fmt: skip


def test_addresses_are_still_shown_without_their_users() -> None:
    assert {address: recorded_address(address) for address in SHOWN} == {
        address: {"url": shown} for address, shown in SHOWN.items()
    }


def test_control_the_earlier_reader_is_killed(readings: dict[str, tuple[int, str]]) -> None:
    code, text = readings["control"]
    assert (code, text.endswith("of '1 passed in ' and '1'")) == (-signal.SIGPROF, True)


def read(path: str, text: str) -> None:
    texts = {path: text, "app.py": "", "tests/test_app.py": "import pytest\n"}
    files = RepositoryFiles(files=dict.fromkeys(texts, "1"), texts=texts)
    detect(files, EnvironmentSpec(), _MACHINE, _TOOLING)
    digest(files)
    project_code(files)


def read_manifests() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    within(MANIFEST_SECONDS, lambda manifest: read(*manifest), MANIFESTS, sys.stdout)


@pytest.mark.slow  # quick: unit tests of recipes
def test_no_manifest_takes_its_reader() -> None:
    done = _running("read_manifests")
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}: {done.stderr[-500:]}"
    assert done.stdout.splitlines() == list(MANIFESTS)
