"""Evidence about candidates: real git, real sandbox, real pytest and ruff; only the model is scripted."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitClone, GitWorkspaceProvider
from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.agents.equipment import Equipment
from swe_ai_fleet.agents.rubric import RubricJudge
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.candidate import CheckKind, CheckReport, CheckResult
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errand import CheckAssignment
from swe_ai_fleet.domain.task import CheckSpec, Constraints, EnvironmentSpec, PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.orchestrator.evidence import EvidenceGatherer
from swe_ai_fleet.orchestrator.evidence.baselines import Baselines
from swe_ai_fleet.sandbox import Rung, Sandbox, SandboxPolicy
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.memory_log import MemoryLog
from swe_ai_fleet.testing.repositories import git, make_repository, write_files
from swe_ai_fleet.tools.secrets import Secrets

APP = """\
seen = []


def add(a, b):
    return a + b


def sub(a, b):
    return a - b


def mul(a, b):
    return a + b
"""
TESTS = """\
import unittest

import app


class Sums(unittest.TestCase):
    def test_add(self):
        self.assertEqual(app.add(1, 2), 3)

    def test_sub(self):
        self.assertEqual(app.sub(3, 2), 1)

    def test_mul(self):
        self.assertEqual(app.mul(2, 3), 6)
"""
FILES = {"app.py": APP, "tests/test_app.py": TESTS, "tests/__init__.py": "", "ruff.toml": 'lint.select = ["F"]\n'}
DIVIDES = APP + "\n\ndef div(a, b):\n    return a // b\n"
MUL = "tests.test_app.Sums.test_mul"
PYTEST_FILES = {
    "app.py": APP,
    "conftest.py": "",
    "tests/test_app.py": (
        "import app\n\n\ndef test_add():\n    assert app.add(1, 2) == 3\n\n\n"
        "def test_sub():\n    assert app.sub(3, 2) == 1\n\n\ndef test_mul():\n    assert app.mul(2, 3) == 6\n"
    ),
}
SKIPPING_TESTS = (CheckSpec(name="nothing", command=":"),)


class CountingProvider(GitWorkspaceProvider):
    """Notes the names of the clones that were opened."""

    opened: list[str]
    baseline_opened: asyncio.Event

    @asynccontextmanager
    async def open(
        self, execution_id: str, name: str, repository: PinnedRepository, environment: Environment
    ) -> AsyncGenerator[GitClone]:
        self.opened.append(name)
        async with super().open(execution_id, name, repository, environment) as clone:
            if name.startswith("baseline"):
                self.baseline_opened.set()
            yield clone


class World:
    """A repository and what gathers evidence about patches to it."""

    def __init__(self, root: Path, files: Mapping[str, str], rung: Rung | None = None) -> None:
        self.root = root
        self.repo = make_repository(root / "repo", files)
        sandbox = Sandbox(SandboxPolicy(rung=rung) if rung else SandboxPolicy())
        self.provider = CountingProvider(root / "home", sandbox, allowed_roots=(root,), allow_local_paths=True)
        self.provider.opened, self.provider.baseline_opened = [], asyncio.Event()
        self.turn = asyncio.Lock()
        self.log = MemoryLog()
        self.gatherer = EvidenceGatherer(workspaces=self.provider, blobs=self.log, mask=Secrets(["entrusted-value-1"]))
        self.task = Task(
            task_id="t", kind=TaskKind.DELIBERATE, description="Divide.", repo=RepoRef(location=str(self.repo))
        )

    async def pinned(self) -> PinnedRepository:
        return await self.provider.pin("default", self.task.repo)

    async def commit(self, files: Mapping[str, str]) -> str:
        """A commit with these files on a branch of its own."""
        git(self.repo, "switch", "--quiet", "--create", "other")
        write_files(self.repo, files)
        git(self.repo, "commit", "--quiet", "--all", "--message", "Change")
        commit = git(self.repo, "rev-parse", "HEAD")
        await self.provider.pin("default", replace(self.task.repo, ref="other"))
        git(self.repo, "switch", "--quiet", "-")
        return commit

    def patch(self, files: Mapping[str, str | None]) -> bytes:
        """What turns the repository's own files into these."""
        write_files(self.repo, {name: content for name, content in files.items() if content is not None})
        for name, content in files.items():
            if content is None:
                (self.repo / name).unlink()
        git(self.repo, "add", "--all")
        options = ("--cached", "--binary", "--full-index", "--no-renames")
        done = subprocess.run(("git", "diff", *options), cwd=self.repo, check=True, capture_output=True)
        git(self.repo, "reset", "--quiet", "--hard")
        return done.stdout

    async def check(
        self,
        files: Mapping[str, str | None],
        *,
        name: str = "candidate",
        gatherer: EvidenceGatherer | None = None,
        **constraints: object,
    ) -> CheckReport:
        """The evidence about a candidate that leaves these files."""
        task = replace(self.task, constraints=Constraints(**constraints))  # pyright: ignore[reportArgumentType]
        # Patches are made in the work tree, and one that is changed meanwhile is not pinned.
        async with self.turn:
            repository, patch = await self.pinned(), self.patch(files)
        assignment = CheckAssignment(
            execution_id=self.task.execution_id,
            candidate_id=name,
            task=task,
            repository=repository,
            patch=await self.log.put("default", self.task.execution_id, patch, "text/x-diff"),
        )
        return await (gatherer or self.gatherer).gather(assignment)

    async def whole_output(self, result: CheckResult) -> str:
        digest = result.details["output_artifact"]
        name = f"default/{self.task.execution_id}/{digest}"
        return (await self.log.get(BlobRef(name=name, digest=digest, size=0))).decode()


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("evidence"), FILES)


@pytest.fixture(scope="module")
async def unconfined(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("evidence"), FILES, Rung.NONE)


@pytest.fixture(scope="module")
async def pytest_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("evidence"), PYTEST_FILES)


def named(report: CheckReport, name: str) -> CheckResult:
    return next(result for result in report.results if result.name == name)


async def test_what_failed_before_does_not_count_and_is_found_out_once(world: World) -> None:
    world.provider.opened.clear()
    reports = await asyncio.gather(
        world.check({"app.py": DIVIDES}, name="one"), world.check({"app.py": DIVIDES + "\n# more\n"}, name="two")
    )
    for report in reports:
        tests = named(report, "tests")
        assert report.accepted
        assert tests.passed
        assert tests.message == "1 test fails as before"
        assert tests.details["failing before"] == MUL
        assert tests.details["baseline"] == "2 passed, 1 failed"
        assert 0.5 < tests.score < 1
        assert tests.tests is not None
        assert (tests.tests.passed, tests.tests.failed) == (2, 1)
        assert "test_mul" in await world.whole_output(tests)
        assert [result.name for result in report.results] == ["patch applies", "policy", "lint", "tests"]
    assert len([name for name in world.provider.opened if name.startswith("baseline")]) == 1
    assert not [name for name in world.provider.opened if name.startswith("rerun")]


async def test_what_is_put_right_is_worth_more(world: World) -> None:
    report = await world.check({"app.py": APP.replace("mul(a, b):\n    return a + b", "mul(a, b):\n    return a * b")})
    tests = named(report, "tests")
    assert (tests.passed, tests.score, tests.message) == (True, 1.0, "")
    assert tests.details["fixed"] == MUL


async def test_a_broken_test_counts_beside_one_that_was_broken(world: World) -> None:
    report = await world.check({"app.py": DIVIDES.replace("a - b", "b - a")})
    tests = named(report, "tests")
    assert not report.accepted
    assert tests.problems == ("tests.test_app.Sums.test_sub",)
    assert tests.message == "1 test fails that did not before; 1 test fails as before"
    assert tests.score < 0.5


async def test_a_test_that_fails_in_another_way_counts(world: World) -> None:
    """As one does that the task names: it is what the candidate works on."""
    otherwise = await world.check(
        {"app.py": DIVIDES.replace("mul(a, b):\n    return a + b", "mul(a, b):\n    return a.b")}
    )
    assert named(otherwise, "tests").problems == (MUL,)
    asked = await world.check({"app.py": DIVIDES}, requirements=("tests/test_app.py passes",))
    assert named(asked, "tests").message == "1 test fails that the task is about"
    assert not asked.accepted


async def test_a_flaky_test_is_named_and_does_not_count(unconfined: World) -> None:
    # Out of the sandbox a test can see that it has run before.
    marker = unconfined.root / "marker"
    flaky = f"""\
import pathlib
import unittest


class Flaky(unittest.TestCase):
    def test_flaky(self):
        marker = pathlib.Path({str(marker)!r})
        there = marker.exists()
        marker.touch()
        self.assertTrue(there)
"""
    report = await unconfined.check({"app.py": DIVIDES, "tests/test_flaky.py": flaky})
    tests = named(report, "tests")
    assert tests.details["flaky"] == "tests.test_flaky.Flaky.test_flaky"
    assert tests.message == "1 test fails as before; 1 flaky"
    assert report.accepted
    assert tests.problems == ()
    assert tests.warnings == 1
    assert [name for name in unconfined.provider.opened if name.startswith("rerun")] == ["rerun1-candidate"]


async def test_a_test_that_fails_only_among_the_others_is_not_flaky_in_a_short_suite(world: World) -> None:
    head = "import unittest\n\nimport app\n\n\nclass T(unittest.TestCase):\n"
    files = {
        "app.py": DIVIDES,
        "tests/test_a.py": f"{head}    def test_marks(self):\n        app.seen.append(1)\n",
        "tests/test_z.py": f"{head}    def test_upset(self):\n        self.assertFalse(app.seen)\n",
    }
    world.provider.opened.clear()
    short = await world.check(files)
    assert named(short, "tests").problems == ("tests.test_z.T.test_upset",)
    assert len([name for name in world.provider.opened if name.startswith("rerun")]) == 2
    long = await world.check(files, gatherer=replace(world.gatherer, whole_rerun_seconds=0))
    assert named(long, "tests").details["flaky"] == "tests.test_z.T.test_upset"


async def test_a_removed_test_is_no_way_to_pass(world: World) -> None:
    fewer = TESTS.replace("test_sub", "check_sub")
    removed = await world.check({"app.py": APP.replace("a - b", "b - a"), "tests/test_app.py": fewer})
    assert named(removed, "policy").problems == ("tests/test_app.py:10: removes the tests test_sub",)
    assert named(removed, "tests").message == "2 tests ran, 3 before; 1 test fails as before"
    assert not removed.accepted


async def test_tests_that_a_hook_hides_are_missed(pytest_world: World) -> None:
    hook = (
        "def pytest_collection_modifyitems(items):\n    items[:] = [item for item in items if 'sub' not in item.name]\n"
    )
    hidden = await pytest_world.check({"app.py": APP.replace("a - b", "b - a"), "conftest.py": hook})
    assert named(hidden, "policy").passed
    assert named(hidden, "policy warnings").problems == (
        "conftest.py:1: changes pytest's hooks, which decides what checks say",
    )
    assert not named(hidden, "tests").passed
    assert named(hidden, "tests").problems == ("2 tests ran, 3 before",)
    assert not hidden.accepted


async def test_a_hook_that_makes_everything_pass_is_only_warned_of(pytest_world: World) -> None:
    """A limit, and documented: what runs the tests belongs to the candidate. People and reviewers see the warning."""
    hook = (
        "import pytest\n\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport():\n"
        "    outcome = yield\n    outcome.get_result().outcome = 'passed'\n"
    )
    report = await pytest_world.check({"app.py": APP.replace("a - b", "b - a"), "conftest.py": hook})
    assert named(report, "tests").passed
    assert not named(report, "policy warnings").passed
    assert named(report, "policy warnings").score == 0.5


async def test_lint_counts_what_is_new_by_the_rules_from_before(world: World) -> None:
    careless = {"app.py": f"import os\n{DIVIDES}"}
    plain = await world.check(careless, checks=SKIPPING_TESTS)
    assert named(plain, "lint").problems == ("app.py:1:8: F401 `os` imported but unused",)
    switched = await world.check({**careless, "ruff.toml": "lint.select = []\n"}, checks=SKIPPING_TESTS)
    lint = named(switched, "lint")
    assert lint.problems == named(plain, "lint").problems
    assert "ruff.toml" in lint.details["settings"]
    assert named(switched, "policy warnings").problems == (
        "ruff.toml:1: changes the settings, which decides what checks say",
    )
    assert named(await world.check({"app.py": DIVIDES}, checks=SKIPPING_TESTS), "lint").passed


async def test_what_does_not_compile_ends_it(world: World) -> None:
    report = await world.check({"other.py": "def f(:\n    pass\n", "templates/x.py": "{{ this }} is none\n"})
    build = named(report, "build")
    assert build.problems == ("other.py:1: invalid syntax",)
    assert not report.accepted
    assert "tests" not in [result.name for result in report.results]


async def test_patches_that_do_not_apply_or_change_nothing(world: World) -> None:
    refs = [
        await world.log.put("default", world.task.execution_id, data, "text/x-diff")
        for data in (b"", world.patch({"app.py": DIVIDES}).replace(b" def mul", b" def mult"), b"From: me\n\nwords\n")
    ]
    messages: list[str] = []
    for ref in refs:
        report = await world.gatherer.gather(
            CheckAssignment(
                execution_id=world.task.execution_id,
                candidate_id="c",
                task=world.task,
                repository=await world.pinned(),
                patch=ref,
            )
        )
        assert [result.name for result in report.results] == ["patch applies", "policy"]
        assert not report.accepted
        messages.append(report.results[0].message or report.results[1].message)
    assert messages[0] == "the candidate changes nothing"
    assert "patch does not apply" in messages[1]


async def test_a_delivered_commit_is_held_against_the_one_before(world: World) -> None:
    base = await world.pinned()
    delivered = replace(base, commit=await world.commit({"app.py": DIVIDES}))
    assignment = CheckAssignment(
        execution_id=world.task.execution_id, candidate_id="c", task=world.task, repository=delivered, baseline=base
    )
    report = await world.gatherer.gather(assignment)
    assert report.accepted
    assert named(report, "tests").message == "1 test fails as before"
    alone = await world.gatherer.gather(replace(assignment, baseline=None))
    assert not alone.accepted
    assert named(alone, "tests").details == {
        "baseline": "none: no commit before it is known",
        "output_artifact": named(alone, "tests").details["output_artifact"],
    }


async def test_commands_of_the_task_are_excused_nothing_and_keep_their_output(world: World) -> None:
    world.provider.opened.clear()
    loud = "i=0; while [ $i -lt 900 ]; do echo line $i entrusted-value-1; i=$((i+1)); done; python3 -m pytest -q"
    checks = (CheckSpec(name="loud", command=loud), CheckSpec(name="quiet", command="exit 3", expected_exit_code=3))
    report = await world.check({"app.py": DIVIDES}, checks=checks)
    shouted, quiet = named(report, "loud"), named(report, "quiet")
    assert [shouted.kind, shouted.passed, shouted.exit_code] == [CheckKind.COMMAND, False, 1]
    assert (quiet.passed, quiet.score, quiet.output, dict(quiet.details)) == (True, 1.0, "", {})
    assert not report.accepted
    whole = await world.whole_output(shouted)
    assert len(shouted.output) < 9_000 < len(whole)
    assert "line 450 [masked]" in whole
    assert "entrusted" not in whole + shouted.output
    assert not [name for name in world.provider.opened if name.startswith("baseline")]


# Other ways to test and lint

CHECKS = "import unittest\n\nimport app\n" + TESTS.partition("import app\n")[2]
FLAKE8 = """\
#!/usr/bin/env python3
import sys

for name in sys.argv[sys.argv.index("--") + 1 :]:
    for number, line in enumerate(open(name), start=1):
        if line == "import os\\n":
            print(f"./{name}:{number}:1: F401 'os' imported but unused")
"""


@pytest.fixture(scope="module")
async def make_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    makefile = "test:\n\tpython3 -m unittest checks\n"
    files = {"app.py": APP, "checks.py": CHECKS, "Makefile": makefile, ".flake8": "[flake8]\n", "tools/flake8": FLAKE8}
    world = World(tmp_path_factory.mktemp("evidence"), files)
    git(world.repo, "update-index", "--chmod=+x", "tools/flake8")
    git(world.repo, "commit", "--quiet", "--message", "Executable")
    git(world.repo, "reset", "--quiet", "--hard")
    return world


async def test_a_test_target_that_runs_nothing_is_no_way_to_pass(make_world: World) -> None:
    report = await make_world.check({"app.py": APP.replace("a - b", "b - a"), "Makefile": "test:\n\t@true\n"})
    assert named(report, "tests").problems == ("no tests ran, 3 before",)
    assert not report.accepted


async def test_without_a_baseline_a_candidate_is_judged_alone(make_world: World) -> None:
    base = await make_world.pinned()
    silent = await make_world.commit({"Makefile": "test:\n\t@true\n"})
    assignment = CheckAssignment(
        execution_id=make_world.task.execution_id,
        candidate_id="c",
        task=make_world.task,
        repository=base,
        baseline=replace(base, commit=silent),
    )
    report = await make_world.gatherer.gather(assignment)
    tests = named(report, "tests")
    assert not report.accepted
    assert tests.details["baseline"] == "none: on the commit before, no report of the tests was found"
    assert tests.message == "1 of 3 tests did not pass"


async def test_a_check_that_is_cancelled_leaves_nothing(make_world: World) -> None:
    gatherer = replace(make_world.gatherer, baselines=Baselines())
    make_world.provider.baseline_opened.clear()
    checking = asyncio.create_task(make_world.check({"Makefile": "test:\n\tsleep 60\n"}, gatherer=gatherer))
    await make_world.provider.baseline_opened.wait()
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking
    assert not list((make_world.root / "home/workspaces").rglob("tree"))


async def test_flake8_where_the_repository_is_set_up_for_it(make_world: World) -> None:
    careless = {"app.py": f"import os\n{APP}"}
    absent = named(await make_world.check(careless, checks=SKIPPING_TESTS), "lint")
    assert absent.skipped_reason == "flake8 is not installed in this workspace's environment."
    make_world.task = replace(make_world.task, environment=EnvironmentSpec(path=("tools",)))
    found = named(await make_world.check(careless, checks=SKIPPING_TESTS), "lint")
    assert found.problems == ("app.py:1:1: F401 'os' imported but unused",)
    assert found.details["linters"] == "flake8"


# The rubric


def _answer(*items: dict[str, object]) -> Turn:
    return Turn(content=f"Here it is:\n```json\n{json.dumps({'items': items})}\n```")


SCRIPT = Script(
    conversations=(
        Conversation(
            match="1. It divides",
            turns=(
                _answer(
                    {"item": 1, "verdict": "met", "quote": "def div(a, b):\n    return a // b", "file": "app.py"},
                    {"item": "2.", "verdict": "Met", "quote": "raise ZeroDivisionError", "reason": "It raises."},
                    {"item": 3, "verdict": "partly", "quote": "+def  sub(a, b):", "file": "app.py"},
                    {"item": 4, "verdict": "not", "reason": "No words."},
                    {"item": 5, "verdict": "splendid", "quote": "return a // b"},
                ),
            ),
        ),
        Conversation(match="1. Be good", turns=(Turn(content="I would rather not."),)),
    )
)


@pytest.fixture(scope="module")
async def model_server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(SCRIPT) as server:
        yield server


@pytest.fixture
async def judged(world: World, model_server: ScriptedModelServer) -> AsyncIterator[EvidenceGatherer]:
    async with OpenAIChatModel(base_url=model_server.url, model="scripted") as model:
        yield replace(world.gatherer, rubric=RubricJudge(equipment=Equipment(models={"": model})))


async def test_rubric_items_count_with_quotes_that_stand_there(world: World, judged: EvidenceGatherer) -> None:
    report = await world.check(
        {"app.py": DIVIDES},
        gatherer=judged,
        checks=SKIPPING_TESTS,
        requirements=("It divides", "Zero is refused"),
        rubric="- keeps sub\n- has a docstring\n- is good\n- is forgotten",
    )
    rubric = named(report, "rubric")
    assert (rubric.kind, rubric.required, rubric.passed, rubric.score) == (CheckKind.RUBRIC, False, False, 0.25)
    assert rubric.message == "1 of 6 items met"
    assert rubric.problems == (
        "Zero is refused: said to be met, but the quote 'raise ZeroDivisionError' does not stand there (It raises.)",
        "keeps sub: partly by '+def sub(a, b):'",
        "has a docstring: not met (No words.)",
        "is good: no verdict that can be read",
        "is forgotten: no verdict",
    )
    assert rubric.usage.prompt_tokens > 0
    assert rubric.details["model"] == "scripted"
    assert report.accepted


async def test_no_rubric_no_question_and_no_answer_no_verdict(
    world: World, judged: EvidenceGatherer, model_server: ScriptedModelServer
) -> None:
    asked = model_server.requests
    plain = await world.check({"app.py": DIVIDES}, gatherer=judged, checks=SKIPPING_TESTS)
    failing = (CheckSpec(name="no", command="exit 1"),)
    broken = await world.check({"app.py": DIVIDES}, gatherer=judged, checks=failing, rubric="Be good")
    assert model_server.requests == asked
    assert "rubric" not in [result.name for result in plain.results]
    assert named(broken, "rubric").skipped_reason == "not every required check passed"
    refused = await world.check({"app.py": DIVIDES}, gatherer=judged, checks=SKIPPING_TESTS, rubric="Be good")
    assert "no usable answer" in named(refused, "rubric").skipped_reason
    assert named(refused, "rubric").usage.prompt_tokens > 0
    assert refused.accepted
