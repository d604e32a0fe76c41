"""What planning is made of: reading plans, judging complexity, the fast path, contradictions, the ids of calls."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.planning import Operations, assess, contradicts, fast_path
from swe_ai_fleet.agents.planning.plan_run import ModeRules
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import OnFailure, PlanStep
from swe_ai_fleet.sandbox import open_workspace
from swe_ai_fleet.tools import Pipeline
from swe_ai_fleet.tools.catalogue import ToolAccess, all_toolkits
from swe_ai_fleet.tools.policy import Policy
from tests.tables import table

HOSTILE = (
    *("[" * 300_000, '{"a":' * 60_000, '{"steps": [' * 30_000, "{'" * 150_000),
    *("\n" * 200_000, "a/" * 100_000, "Aa" * 100_000, "`" * 200_000, "a.b." * 50_000),
)
DOUBTFUL = """read file src/app.py and fix the bug
read the README
read file -rf
read file src/
read file /etc/passwd
git status && rm -rf .
run the tests and commit
what is __import__('os')
search for the error in parser.py
search for .*
http get example.com"""
READ = {"tool": "files", "operation": "read_file", "params": {"path": "a.py"}}


@pytest.fixture(scope="module")
async def toolbox(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolbox]:
    root = tmp_path_factory.mktemp("clone")
    (root / "a.py").write_text("def one():\n    return 1\n")
    async with open_workspace(root) as workspace:
        pipeline = Pipeline()
        yield Toolbox(all_toolkits(workspace, pipeline, ToolAccess()), pipeline, idle={"docker_ps"})


@pytest.fixture(scope="module")
def operations(toolbox: Toolbox) -> Operations:
    return Operations(toolbox)


async def under(policy: Policy, root: Path) -> Operations:
    async with open_workspace(root) as workspace:
        pipeline = Pipeline(policy=policy)
        return Operations(Toolbox(all_toolkits(workspace, pipeline, ToolAccess()), pipeline))


class TestReading:
    """Whatever a model wraps its plan into, it is found."""

    @table(
        "text",
        [
            json.dumps({"steps": [READ]}),
            f"```json\n{json.dumps({'steps': [READ]})}\n```",
            f"Sure! Here is the plan you wanted:\n\n{json.dumps({'steps': [READ]})}\n\nShall I go on?",
            f'<think>maybe {{"steps": []}} or [1, 2]?</think>{json.dumps({"plan": [READ]})}',
            json.dumps({"Steps": [{"Tool": "files", "Operation": "read_file", "Arguments": {"path": "a.py"}}]}),
            json.dumps({"steps": [{"function": {"name": "files_read_file", "arguments": '{"path": "a.py"}'}}]}),
            json.dumps({"steps": [{"tool": "files", "operation": "read_file", "path": "a.py", "step": 1}]}),
            "{'steps': [{'tool': 'files', 'operation': 'read_file', 'params': {'path': 'a.py'}}]}",
            '{steps: [{tool: "files", operation: "read_file", params: {path: "a.py"}}]}',
        ],
    )
    async def test_the_same_plan_is_read_from_it(self, operations: Operations, text: str) -> None:
        plan, problems = operations.read(text)
        assert problems == ()
        (step,) = plan.steps
        assert (step.tool, step.operation, step.params) == ("files", "read_file", {"path": "a.py"})
        assert step.on_failure is OnFailure.ABORT

    @table(
        ("step", "problem"),
        [
            (READ | {"params": {}}, "missing argument 'path'. Signature: files_read"),
            (READ | {"params": {"path": "a", "mood": 1}}, "unexpected argument"),
            (READ | {"params": "path a.py"}, "not a JSON object"),
            ({"tool": "oven", "operation": "bake", "params": {}}, "there is no operation 'oven bake'"),
            (READ | {"operation": "write_fil"}, "Did you mean files_write_file("),
            (READ | {"on_failure": "panic"}, "on_failure is 'panic'"),
            ("files_read_file(path='a.py')", "it is a str"),
        ],
    )
    async def test_each_problem_is_told_with_its_step(self, operations: Operations, step: object, problem: str) -> None:
        _, (told,) = operations.read(json.dumps({"steps": [READ, step]}))
        assert told.startswith("step 2: ")
        assert problem in told

    async def test_what_holds_no_plan_is_a_problem_too(self, operations: Operations) -> None:
        for text in ("", "I can't.", "[]", "{}", "[1, 2]", '{"steps": 3}', '{"steps": [', "{" * 5000):
            plan, problems = operations.read(text)
            assert plan.steps == () and problems, text

    async def test_a_plan_and_what_is_told_of_its_problems_have_a_length(self, operations: Operations) -> None:
        assert not operations.read('{"reasoning": "I know that.", "steps": []}')[1]
        assert operations.read(json.dumps([READ] * 1_000))[1]
        _, problems = operations.read(json.dumps({"steps": [{"tool": "oven", "operation": "bake"}] * 40}))
        assert (len(problems), problems[-1]) == (13, "and 28 problems more")

    async def test_what_policy_denies_cannot_be_planned(self, tmp_path: Path) -> None:
        policy = Policy(role=Role.DEV, read_only=True, allowed_paths=("src/*",))
        operations = await under(policy, tmp_path)
        write = {"tool": "files", "operation": "write_file", "params": {"path": "a", "content": ""}}
        assert "there is no operation 'files write_file'" in operations.read(json.dumps([write]))[1][0]
        operations = await under(Policy(allowed_paths=("src/*",)), tmp_path)
        assert "lies outside the paths allowed" in operations.read(json.dumps([write]))[1][0]

    @table("text", HOSTILE)
    async def test_hostile_text_is_read_and_judged_in_time(self, operations: Operations, text: str) -> None:
        began = time.process_time()
        operations.read(text)
        assert 0 <= assess(text) <= 1
        assert time.process_time() - began < 30


CONTRADICTIONS = [
    ("", {"success": False, "error": "no such file"}, "no such file"),
    ("def one", {"content": "def one(): ..."}, ""),
    ("def two", {"content": "def one(): ..."}, "does not show 'def two'"),
    ("def two", {"content": "def one(): ...", "truncated": True}, ""),
    ("exit 1", {"success": False, "error": "exit code 1", "exit_code": 1}, ""),
    ("exit 0", {"success": False, "error": "exit code 1", "exit_code": 1}, "expected exit 0, it was 1"),
    ("exit 1", {"exit_code": 0}, "expected exit 1, it was 0"),
    ("exit 0", {"success": False, "error": "no such file"}, "it was 1. no such file"),
]


@table(("expect", "seen", "problem"), CONTRADICTIONS)
def test_what_speaks_against_the_plan(expect: str, seen: dict[str, Any], problem: str) -> None:
    result = ToolResult(operation="x", **{"success": True, **seen})
    said = contradicts(PlanStep(tool="x", operation="y", expect=expect), result)
    assert problem in said
    assert bool(problem) is bool(said)


class TestFastPath:
    async def test_anything_doubtful_is_for_the_model(self, operations: Operations) -> None:
        odd = ["", "git log\n\nFix the parser", "read file a.py\0", "read file " + "a" * 300 + ".py"]
        for text in (*DOUBTFUL.splitlines(), *odd):
            assert fast_path(text, operations) is None, text

    @given(text=st.text(alphabet="readlistgwhcufo 0123456789+-*/().'`\n", max_size=250))
    def test_whatever_is_asked_only_reading_comes_of_it(self, operations: Operations, text: str) -> None:
        plan = fast_path(text, operations)
        if plan is not None:
            spec = operations.spec(plan.steps[0])
            assert spec is not None
            assert spec.name == "tests_run" or (spec.read_only and not spec.network and not spec.executes)


SIMPLE = """price of PEPE
Which files import requests?
Read config.yaml and tell me which port the server listens on.
Run the tests and tell me how many pass.
Append a line 'x = 1' to a.py.
Read a.py, then read b.py, and tell me which one is longer.""".splitlines()
AGENTIC = [
    *"""Fix the failing test in tests/test_parser.py.
Implement a cache for the HTTP client.
Find out why test_upload is flaky and fix it.
Extend the API with an endpoint for deleting users, with tests.
The application crashes on start when the config is empty. Fix it.
find new safe tokens on base with good liquidity""".splitlines(),
    "1. Read the spec\n2. Implement it\n3. Write tests\n4. Run them\n5. Commit",
    "Change every caller of old_api in src, tests and docs to new_api, remove old_api, update CHANGELOG.md, "
    "run the tests, and if one fails, repair it.",
]


@table("request_text", [*SIMPLE, *AGENTIC])
def test_what_can_be_planned_stays_below_the_threshold_and_open_ended_work_does_not(request_text: str) -> None:
    assert (assess(request_text) >= ModeRules().threshold) is (request_text in AGENTIC), assess(request_text)
