"""Manifests of a repository made to take the process that reads them: its time, its memory, its stack.

They are read in a process of its own, with little memory, that the kernel kills when one of them has used its CPU time.
"""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys

import yaml

from swe_ai_fleet.domain.task import EnvironmentSpec
from swe_ai_fleet.environments.detection import detect, digest
from swe_ai_fleet.environments.interpreters import Machine
from swe_ai_fleet.environments.pip_steps import Tooling
from swe_ai_fleet.environments.project_code import project_code
from swe_ai_fleet.environments.repository_files import RepositoryFiles

CPU_SECONDS = 10.0
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


def read(path: str, text: str) -> None:
    texts = {path: text, "app.py": "", "tests/test_app.py": "import pytest\n"}
    files = RepositoryFiles(files=dict.fromkeys(texts, "1"), texts=texts)
    detect(files, EnvironmentSpec(), _MACHINE, _TOOLING)
    digest(files)
    project_code(files)


def read_all() -> None:
    """Read every manifest; one that takes too much ends this process, its name said before."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for name, manifest in MANIFESTS.items():
        print(name, flush=True)
        # Time that this process computes, not time that goes by: other load on the machine is none of it.
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        read(*manifest)
        signal.setitimer(signal.ITIMER_PROF, 0)


def earlier_yaml() -> None:
    """As it was: whatever the depth."""
    yaml.load(MANIFESTS["lists in lists"][1], Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def earlier_pattern() -> None:
    """As it was: from each line on, all blank lines behind it."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS / 5)
    re.search(r"^\s*build\s*=", _LINES, re.M)


def _running(function: str) -> subprocess.CompletedProcess[str]:
    program = f"from {__name__} import {function}; {function}()"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_no_manifest_takes_its_reader() -> None:
    done = _running("read_all")
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}: {done.stderr[-500:]}"
    assert done.stdout.splitlines() == list(MANIFESTS)


def test_control_the_earlier_readers_die() -> None:
    assert _running("earlier_pattern").returncode == -signal.SIGPROF
    # Without libyaml it is Python's own stack that ends first.
    assert _running("earlier_yaml").returncode in (-signal.SIGSEGV, 1)
