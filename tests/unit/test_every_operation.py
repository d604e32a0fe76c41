"""What must hold of every operation of the catalogue, without a sandbox: schema, observations, traits, audit."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator

from swe_ai_fleet.domain.audit import verify
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.event import ToolFinished, ToolStarted
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.tools import FileTool, GitTool, Pipeline, ShellTool, TestTool, ToolFailure, Toolkit, ToolRefusal
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.catalogue import operations
from swe_ai_fleet.tools.definition import CalledToolkit
from swe_ai_fleet.tools.secrets import MASK, Secrets
from tests.operations import ARGUMENTS, OPERATIONS, Operation, make_workspace
from tests.tables import table
from tests.tool_doubles import ListJournal

each = table("operation", OPERATIONS)
Work = Callable[[], Awaitable[ToolResult]]


NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
LONGEST_DESCRIPTION = 1024
LONGEST_SUMMARY = 120
SECRET = "s3cr3t-token-of-the-test"


class Replaced:
    """An operation whose schema and traits are real, and whose work is another's."""

    def __init__(self, real: Any, work: Callable[[], Awaitable[ToolResult]]) -> None:
        self._real = real
        self._work = work
        # Long enough for anything but what hangs.
        self.spec: OperationSpec = replace(real.spec, time_limit_seconds=0.05, executes=False)

    def validate(self, arguments: Mapping[str, object]) -> dict[str, object]:
        return self._real.validate(arguments)

    def run(self, toolkit: CalledToolkit, arguments: Mapping[str, object]) -> Awaitable[ToolResult]:
        return self._work()


async def never(*_: object) -> Any:
    await asyncio.Event().wait()


def kit_of(operation: Operation, root: Path, **parts: Any) -> Toolkit:
    """A toolkit in a directory in which no command runs."""
    environment = Environment(test_command=("make", "test"))
    workspace: Any = SimpleNamespace(root=root, mount="/workspace", environment=environment, run=never)
    return operation.kit(workspace, Pipeline(**parts))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return make_workspace(tmp_path / "clone")


def outcomes(kit: Toolkit) -> list[str]:
    assert verify(kit.pipeline.trail.entries, head=kit.pipeline.trail.head) is None
    return [str(entry.outcome) for entry in kit.pipeline.trail.entries]


def begun(operation: Operation, outcome: str) -> list[str]:
    """The entries of a call that was let through: what only reads gets no entry of its own for its start."""
    return [outcome] if operation.spec.read_only else ["started", outcome]


def test_names_are_unique_and_rows_are_there() -> None:
    names = [operation.spec.name for operation in OPERATIONS]
    assert len(set(names)) == len(names) >= 50
    assert set(names) == set(operations())
    assert sorted(set(names) - set(ARGUMENTS)) == [], "operations without a row in tests/operations.py"


async def test_a_toolkit_is_made_of_a_path_and_says_that_operations_are_awaited(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone.parent)
    for made in (GitTool(clone.name), ShellTool(clone.name), TestTool(Path(clone.name))):
        assert made.workspace.root == clone.resolve()
    call: Any = FileTool(clone.name).read_file(next(path.name for path in clone.iterdir() if path.is_file()))
    # What a program without an event loop would do with it.
    with pytest.raises(AttributeError, match=r"FileTool.read_file has not run.*Write `await` before"):
        _ = call.success
    assert (await call).success


@each
def test_the_schema_says_all_that_a_model_and_a_server_must_know(operation: Operation) -> None:
    spec, definition = operation.spec, cast("Any", operation.definition)
    # What does the work: a toolkit's method, or a registered tool's.
    work = definition.function if hasattr(definition, "function") else type(definition.tool).execute
    parameters = list(inspect.signature(work).parameters.values())[1:]
    schema = cast("dict[str, Any]", spec.parameters)
    assert list(schema["properties"]) == [parameter.name for parameter in parameters]
    required = [parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty]
    assert schema.get("required", []) == required
    for parameter in parameters:
        shown = schema["properties"][parameter.name]
        assert NAME.fullmatch(parameter.name)
        assert shown.get("description"), parameter.name
        assert ("default" in shown) is (parameter.name not in required)
        if parameter.name not in required:
            assert shown["default"] == json.loads(json.dumps(parameter.default))
    assert NAME.fullmatch(spec.name)
    bare = operation.kit.bare or spec.tool == spec.operation
    assert spec.name == (spec.operation if bare else f"{spec.tool}_{spec.operation}")
    summary, *rest = spec.description.splitlines()
    assert 10 < len(summary) <= LONGEST_SUMMARY
    assert summary.endswith(".") and summary[0].isupper()
    assert not rest or not rest[0]
    assert len(spec.description) <= LONGEST_DESCRIPTION
    # Servers accept it.
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(operation.arguments)
    assert json.loads(json.dumps(schema)) == schema
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    assert not {"anyOf", "oneOf", "allOf", "enum", "not", "title"} & set(schema)


async def _success() -> ToolResult:
    return ToolResult(success=True, operation="any", content=f"all of it: {SECRET}")


async def _error() -> ToolResult:
    raise ToolFailure(f"it failed: {SECRET}")


async def _refusal() -> ToolResult:
    raise ToolRefusal(f"not allowed: {SECRET}")


class TestAudit:
    """Every ending of every operation, with its real schema and traits."""

    @table(
        ("work", "outcome"),
        [(_success, Outcome.SUCCESS), (_error, Outcome.ERROR), (_refusal, Outcome.REFUSED), (never, Outcome.TIMEOUT)],
    )
    async def test_endings(self, root: Path, work: Work, outcome: Outcome) -> None:
        # Those that are waited for to the end of their time are waited for together.
        many = len(OPERATIONS) if work is never else 1
        for start in range(0, len(OPERATIONS), many):
            some = OPERATIONS[start : start + many]
            await asyncio.gather(*(self.ending(operation, root, work, outcome) for operation in some))

    async def ending(self, operation: Operation, root: Path, work: Work, outcome: Outcome) -> None:
        journal = ListJournal()
        kit = kit_of(operation, root, mask=Secrets([SECRET]), trail=AuditTrail(journal=journal))
        definition = Replaced(operation.definition, work)
        result = await kit.pipeline.call(definition, kit, operation.arguments, call_id="call-1")
        assert result.outcome is outcome
        assert outcomes(kit) == begun(operation, outcome)
        assert [type(body) for body in journal.bodies] == [ToolStarted, ToolFinished][-len(journal.bodies) :]
        entries = kit.pipeline.trail.entries
        assert {entry.call_id for entry in entries} == {"call-1"}
        assert {entry.workspace_revision for entry in entries} == {0 if operation.spec.read_only else 1}
        assert entries[-1].decision is (
            PolicyDecision.REFUSED if outcome is Outcome.REFUSED else PolicyDecision.ALLOWED
        )
        assert entries[-1].output_digest and entries[-1].bytes_out == len(result.content or result.error)
        assert SECRET not in repr((result, journal.bodies, entries))
        assert (MASK in result.observation()) is (outcome is not Outcome.TIMEOUT)
