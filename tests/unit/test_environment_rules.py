"""What is decided from a repository's files, and what of an environment run's answer is taken: nothing is built."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from swe_ai_fleet.agents.preparation import read_proposal, selects
from swe_ai_fleet.domain.environment import EnvironmentProposal
from swe_ai_fleet.domain.task import EnvironmentSpec
from swe_ai_fleet.domain.test_run import (
    Baseline,
    TestOutcome,
    TestResult,
    TestRun,
    gets_on_better,
    suite_baseline,
    wants_help,
)
from swe_ai_fleet.environments import (
    Machine,
    Recipe,
    RecipeStep,
    RepositoryFiles,
    Tooling,
    caller_command,
    detect,
    digest,
)
from swe_ai_fleet.environments.requirements import as_constraints, read_lock
from tests.tables import table

MACHINE = Machine(
    default=(3, 11),
    pythons={(3, 9): "/opt/python3.9", (3, 11): "/usr/bin/python3.11", (3, 13): "/opt/python3.13"},
    pip_requires=">=3.9",
    programs=frozenset({"node", "npm", "go", "cargo", "make"}),
)
TOOLING = Tooling(base="/environment", pip="/tools/pip", workspace="/workspace")
SETUPTOOLS = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
PROJECT = SETUPTOOLS + '[project]\nname = "thing"\nversion = "1"\ndependencies = ["attrs"]\n'
TEST = {"tests/test_a.py": "import pytest\n"}
PYTEST = "python3 -m pytest -q"


def repository(files: Mapping[str, str], *, until: str = "") -> RepositoryFiles:
    return RepositoryFiles(files=dict.fromkeys(files, "1"), texts=files, until=until)


def made(files: Mapping[str, str], directory: str = "") -> Recipe:
    return detect(repository(files), EnvironmentSpec(), MACHINE, TOOLING, directory=directory)


def asked_of_pip(step: RecipeStep) -> str:
    """What a step has pip install, without the options that all have in common."""
    words = list(step.argv[step.argv.index("install") + 1 :])
    return shlex.join(word for word in words if not word.startswith(("--no-input", "--disable-pip", "--progress-bar")))


def installed(recipe: Recipe) -> list[str]:
    return [asked_of_pip(step) for step in recipe.steps if "install" in step.argv and "pip" in step.argv]


class Layout(NamedTuple):
    """A repository of environment_layouts.txt; `facts` are its @ lines by their names."""

    files: Mapping[str, str]
    facts: Mapping[str, list[str]]

    def fact(self, name: str) -> str:
        return "".join(self.facts.get(name, []))


def layouts() -> dict[str, Layout]:
    found: dict[str, Layout] = {}
    for text in (Path(__file__).parent / "environment_layouts.txt").read_text().split("\n## ")[1:]:
        head, *files = text.rstrip().split("\n--- ")
        name, *lines = head.splitlines()
        facts: dict[str, list[str]] = {}
        for line in lines:
            key, _, value = line.removeprefix("@").partition(" ")
            facts.setdefault(key, []).append(value)
        pairs = [file.partition("\n")[::2] for file in files]
        texts = {path: f"{body}\n".replace("%PROJECT\n", PROJECT) for path, body in pairs}
        found[name] = Layout(TEST | texts, facts)
    return found


LAYOUTS = layouts()
LOCKS = {
    layout.fact("lock"): layout.files[layout.fact("lock")] for layout in LAYOUTS.values() if "lock" in layout.facts
}


@table("name", [name for name, layout in LAYOUTS.items() if "tests" in layout.facts])
def test_what_python_installs_and_runs(name: str) -> None:
    layout = LAYOUTS[name]
    recipe = made(layout.files, layout.fact("directory"))
    assert installed(recipe) == layout.facts.get("install", [])
    steps = [step for step in recipe.steps if "install" in step.argv]
    assert (steps[-1].source if steps else "") == layout.fact("source")
    assert f"{shlex.join(recipe.test_command)} < {recipe.test_source}" == layout.fact("tests")
    assert set(layout.facts.get("said", [])) <= {decision.what for decision in recipe.decisions}


@table("name", LOCKS)
def test_a_lock_pins_what_this_python_would_get(name: str) -> None:
    lock = read_lock(repository({name: LOCKS[name]}), name, (3, 11))
    assert lock == {"attrs": "23.1", "two": "2"}
    assert as_constraints(lock, without=("two",)) == "attrs==23.1\n"
    recipe = made(TEST | {"pyproject.toml": PROJECT, name: LOCKS[name]})
    assert "-c /environment/constraints.txt" in installed(recipe)[0]
    assert ("its pins constrain what pip installs", name) in {(said.what, said.source) for said in recipe.decisions}
    for text in ("", "no toml [", "[[package]]\nname = 1\n", '[[package]]\nname = "a"\nversion = "; rm"\n'):
        assert not read_lock(repository({name: text}), name, (3, 11)), text


NPM = ("--no-audit", "--no-fund", "--loglevel=error", "--no-progress")
PACKAGE = {"name": "p", "devDependencies": {"jest": "*"}, "scripts": {"test": "jest"}}


MANAGERS: tuple[tuple[dict[str, str], str, str], ...] = (
    ({}, "", "npm install --no-package-lock"),
    ({"package-lock.json": "{}"}, "", "npm ci"),
    ({"pnpm-lock.yaml": "lockfileVersion: '6.0'\n"}, "pnpm@8", "pnpm install --frozen-lockfile"),
    ({"yarn.lock": "# yarn lockfile v1\n"}, "yarn@1.22.22", "yarn install --non-interactive --frozen-lockfile"),
    ({"yarn.lock": "__metadata:\n  version: 8\n"}, "@yarnpkg/cli-dist@4", "yarn install --immutable"),
)


def test_the_package_manager_is_that_of_the_lock() -> None:
    for files, manager, install in MANAGERS:
        recipe = made({"package.json": json.dumps(PACKAGE), **files})
        commands = [" ".join(word for word in step.argv if word not in NPM) for step in recipe.steps]
        expected = ([f"npm install --prefix /environment/pm {manager}"] if manager else []) + [install]
        assert commands == expected
        assert recipe.test_command == ("npm", "test", "--silent")
        assert recipe.steps[-1].source == (next(iter(files)) if files else "package.json")


def test_a_callers_command_is_taken_as_it_is() -> None:
    assert caller_command("pytest -q") == ("pytest", "-q")
    for line in ("cd a && pytest", "A=1 pytest", "pytest 'x"):
        assert caller_command(line) == ("sh", "-c", line)


def test_an_old_commit_without_a_lock_gets_releases_of_its_time() -> None:
    def then(files: Mapping[str, str]) -> tuple[RepositoryFiles, Recipe]:
        old = repository(files, until="2021-05-01")
        return old, detect(old, EnvironmentSpec(), MACHINE, TOOLING)

    project = TEST | {"pyproject.toml": PROJECT + '[dependency-groups]\ntest = ["far @ git+https://h", "mock"]\n'}
    old, recipe = then(project)
    dated = "--uploaded-prior-to=2021-05-01T00:00:00Z mock attrs pytest"
    assert installed(recipe) == [dated, *installed(made(project))]
    assert digest(old) != digest(repository(project))
    locked, recipe = then(project | {"uv.lock": LOCKS["uv.lock"]})
    assert (recipe, digest(locked)) == (made(locked.texts), digest(repository(locked.texts)))
    files = {"package.json": json.dumps(PACKAGE)}
    (step,) = then(files)[1].steps
    assert (step.argv[-1], step.alternatives) == ("--before=2021-05-01", made(files).steps)


def test_what_decides_an_environment_is_in_its_digest() -> None:
    base = {"pyproject.toml": PROJECT, "a.py": ""}
    plain = digest(repository(base))
    assert digest(repository(base | {"b.py": ""})) == plain
    assert digest(repository(base | {"requirements-dev.txt": ""})) != plain
    assert digest(repository(base | {"pkg/__init__.py": ""})) != plain
    native = base | {"pyproject.toml": PROJECT + "# ext-modules\n"}
    assert digest(repository(native | {"src/fast.c": ""})) != digest(repository(native))


HOSTILE = (
    {"requirements.txt": "--index-url http://evil\n-e --x\n../../etc\n-r ../outside.txt\n"},
    {"pyproject.toml": "[" * 5000},
    {"setup.py": "(" * 5000 + "setup(" + "-" * 5000},
    {"tox.ini": "[testenv]\nextras = {[testenv]extras}\ncommands = {[testenv]commands} {posargs:{posargs}}\n"},
    {"tox.ini": "[tox]\nenvlist = " + "{a,b}" * 40 + "\n[testenv]\ncommands = pytest\n"},
    {"requirements.txt": "-r requirements.txt\n" * 50},
    {".github/workflows/ci.yml": "a: &a [1]\nb: [*a, *a]\n"},
    {"noxfile.py": "X = X + X\nimport nox\n@nox.session\ndef tests(s):\n  s.install(*X)\n"},
)


def test_hostile_files_are_read_without_harm() -> None:
    for hostile in HOSTILE:
        recipe = made({**TEST, **hostile})
        words = [word for step in recipe.steps for word in step.argv]
        assert not any("evil" in word or word.startswith("--index") or ".." in word for word in words), hostile


SOURCE = "e/environment"


def run(passed: int = 0, **failing: str) -> TestRun:
    """A run with so many passing tests, and failing ones with what they say; a name in capitals is a file."""
    results = {f"tests/test_a.py::test_{number}": TestResult(outcome=TestOutcome.PASSED) for number in range(passed)}
    for name, said in failing.items():
        where = f"tests/test_{name.lower()}.py" if name.isupper() else f"tests/test_a.py::{name}"
        results[where] = TestResult(outcome=TestOutcome.ERROR if name.isupper() else TestOutcome.FAILED, message=said)
    return TestRun(framework="pytest", command="pytest", results=results, exit_code=int(bool(failing)))


def baseline(*runs: TestRun) -> Baseline:
    return Baseline(commit="c", suites=tuple(map(suite_baseline, runs)))


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        pytest.param(run(3), False, id="all is well"),
        pytest.param(run(1, a="assert 1 == 2", b="assert 2 == 3"), False, id="tests fail on their own account"),
        pytest.param(run(3, X="No module named 'yaml'"), True, id="a module is missing"),
        pytest.param(run(0, a="fixture 'mocker' not found"), True, id="a plug-in is missing"),
        pytest.param(run(300, X="No module named 'torch'"), False, id="one file of many"),
        pytest.param(TestRun(framework="pytest", exit_code=4), True, id="the runner does not start"),
        pytest.param(TestRun(framework="pytest", stopped="the time limit of 600 s was reached"), True, id="it hangs"),
    ],
)
def test_an_environment_run_is_called_for_where_something_is_missing(found: TestRun, wanted: bool) -> None:
    assert wants_help(baseline(found)) is wanted


@table(
    ("before", "after", "better"),
    [
        (run(3, X="No module named 'yaml'"), run(9), True),
        (run(3, X="No module named 'yaml'"), run(3, a="assert 1 == 2"), True),
        (run(3, X="No module named 'yaml'"), run(3, X="No module named 'yaml'"), False),
        (run(3, a="assert 1", X="No module named 'yaml'"), run(4), False),
    ],
)
def test_better_means_more_tests_that_run_and_none_gone(before: TestRun, after: TestRun, better: bool) -> None:
    assert gets_on_better(baseline(before), baseline(after)) is better


def test_an_answer_is_read_whatever_stands_around_it() -> None:
    told = json.dumps({"setup": ["pip install yaml"], "test_command": "", "notes": "it is imported"})
    proposal = EnvironmentProposal(setup=("pip install yaml",), notes="it is imported", source=SOURCE)
    for text in (told, f"<think>{{}}</think>\n{told}", f"Here it is:\n```json\n{told}\n```"):
        assert read_proposal(text, source=SOURCE) == proposal
    for text, problem in (
        ("I could not find it.", "not a JSON object"), ('{"notes": "x"}', "not a JSON object"),
        ('{"setup": [], "notes": "nothing helps"}', "it proposes nothing: nothing helps"),
        (json.dumps({"setup": ["true"] * 21}), "more than 20 commands"),
        (json.dumps({"setup": ["true\nrm -rf /"]}), "one that is no line"),
        ('{"setup": [], "test_command": "pytest -k fast"}', "could decide which tests count"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=problem):
            read_proposal(text, source=SOURCE)
    # The caller's own commands come first, and its test command stands.
    amended = replace(proposal, test_command="pytest").amending(EnvironmentSpec(setup=("a",), test_command="tox"))
    assert amended == EnvironmentSpec(setup=("a", "pip install yaml"), test_command="tox")


def test_a_test_command_that_could_choose_among_tests_is_refused() -> None:
    choosing = (
        "true", "pytest --deselect tests/test_a.py::test_b", "pytest -p no:cacheprovider", "pytest tests && true",
        "pytest $(cat list)", "PYTEST_ADDOPTS=-x pytest", "make test CHECK=none", "npm test -- --grep=fast", "'pytest",
    )  # fmt: skip
    taken = ("pytest -q", "python -m unittest discover -v", "npm test", "go test ./...")
    assert [command for command in (*choosing, *taken) if not selects(command)] == list(taken)
