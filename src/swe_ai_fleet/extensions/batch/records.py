"""Records of a batch file (SWE-bench's, or tasks in our own words, a JSON object a line), and their hidden tests.

Hidden tests run on the winner's patch when all is done, out of every agent's sight, as SWE-bench does it: a clean clone
at the base commit, the patch without what it changed in the files of the tests, the tests' own patch, then the tests
that are to pass. They run on this machine, in the sandbox.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, NotFound, PatchRejected
from swe_ai_fleet.domain.json_values import parse_json
from swe_ai_fleet.domain.task import DEFAULT_TENANT, EnvironmentSpec, RepoRef, UncommittedChanges, check_identifier
from swe_ai_fleet.ports import Clone, WorkspaceProvider

MAX_LINE_BYTES = 16 * 1024 * 1024
_MAX_ID_CHARS = 200
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9_-]+")
SECONDS = 1800.0
"""For one command of a record's hidden tests."""
_IDS_A_RUN = 500
_TOLD_CHARS = 2_000
_FILE_HEADER = "diff --git "


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What decides about a patch when all is done, and is never shown to an agent."""

    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    test_patch: str = ""
    commands: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.fail_to_pass or self.pass_to_pass or self.commands)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One task of a batch. `line` is where it stands; numbers left at 0 take the batch's own."""

    line: int
    instance_id: str
    description: str
    repo: str = ""
    base_commit: str = ""
    ref: str = ""
    context: str = ""
    hints: str = ""
    role: str = ""
    checks: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    agents: int = 0
    rounds: int | None = None
    timeout_seconds: int = 0
    hidden: Hidden = field(default_factory=Hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line that holds no task, and why."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


def read_records(path: Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> tuple[list[Record], list[BadLine]]:
    """The tasks of a file and the lines that hold none. Raises OSError."""
    records: list[Record] = []
    bad: list[BadLine] = []
    first: dict[str, int] = {}
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file, max_line_bytes), start=1):
            if not line.strip():
                continue
            try:
                if len(line) > max_line_bytes:
                    raise _Bad(f"it has more than {max_line_bytes} bytes")
                record = _record(number, line)
                if record.instance_id in first:
                    raise _Bad(f"{record.instance_id!r} is already in line {first[record.instance_id]}")
            except _Bad as fault:
                bad.append(BadLine(line=number, reason=str(fault)))
                continue
            first[record.instance_id] = number
            records.append(record)
    return records, bad


def task_id(batch: str, instance_id: str) -> str:
    """The task id that a record of a batch always has: `batch-<batch>-<instance_id>`, made valid where it is not."""
    plain = f"batch-{batch}-{instance_id}"
    try:
        return check_identifier(plain, field="instance_id")
    except InvalidRequest:
        digest = hashlib.sha256(plain.encode()).hexdigest()[:10]
        return f"{_NOT_IN_AN_ID.sub('-', plain)[:110].strip('-')}-{digest}"


class _Bad(Exception):
    """Why a line is refused."""


def _lines(file: BinaryIO, most: int) -> Generator[bytes]:
    """The lines; a longer one is cut one byte past the limit."""
    while line := file.readline(most + 1):
        yield line
        while not line.endswith(b"\n") and (line := file.readline(most + 1)):
            pass


def _record(number: int, line: bytes) -> Record:
    try:
        value = parse_json(line)
    except ValueError as fault:
        raise _Bad(f"not valid JSON: {fault}"[:200]) from None
    if not isinstance(value, dict):
        raise _Bad("not a JSON object")
    fields = _Fields(cast("dict[str, object]", value))
    instance_id = fields.text("instance_id", "task_id", "id")
    if not instance_id or len(instance_id) > _MAX_ID_CHARS or not instance_id.isprintable():
        raise _Bad(f"instance_id must have 1 to {_MAX_ID_CHARS} printable characters")
    description = fields.text("problem_statement", "task", "task_description", "description")
    if not description.strip():
        raise _Bad("problem_statement is empty")
    rounds = fields.number("rounds")
    return Record(
        line=number,
        instance_id=instance_id,
        description=description,
        repo=fields.text("repo"),
        base_commit=fields.text("base_commit", "commit"),
        ref=fields.text("ref"),
        context=fields.text("context"),
        hints=fields.text("hints_text"),
        role=fields.text("role"),
        checks=(*fields.texts("checks"), *fields.texts("test_cmd")),
        setup=fields.texts("setup"),
        variables=fields.pairs("env"),
        network=fields.texts("network"),
        path=fields.texts("path"),
        agents=fields.number("agents", "num_agents") or 0,
        rounds=rounds,
        timeout_seconds=fields.number("timeout_seconds") or 0,
        hidden=Hidden(
            fail_to_pass=fields.texts("FAIL_TO_PASS"),
            pass_to_pass=fields.texts("PASS_TO_PASS"),
            test_patch=fields.text("test_patch"),
            commands=fields.texts("evaluation"),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Fields:
    """A line's fields, each of the type that it must have. A field that is null counts as left out."""

    values: Mapping[str, object]

    def text(self, *names: str) -> str:
        """The first of these fields that is there."""
        for name in names:
            value = self.values.get(name)
            if value is None or value == "":
                continue
            return _text(value, name)
        return ""

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, as such, as JSON in a text (the way SWE-bench has them), or one text alone."""
        value = self.values.get(name)
        if isinstance(value, str) and value.lstrip().startswith("["):
            try:
                value = parse_json(value)
            except ValueError:
                raise _Bad(f"{name} must be a list") from None
        if value is None or value == "":
            return ()
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list):
            raise _Bad(f"{name} must be a list")
        items = tuple(_text(item, name) for item in cast("list[object]", value))
        if not all(item.strip() for item in items):
            raise _Bad(f"{name} contains an empty string")
        return items

    def pairs(self, name: str) -> tuple[str, ...]:
        """An object of texts, as KEY=VALUE each."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, dict):
            raise _Bad(f"{name} must be an object")
        return tuple(f"{_text(key, name)}={_text(raw, name)}" for key, raw in cast("dict[str, object]", value).items())

    def number(self, *names: str) -> int | None:
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
                raise _Bad(f"{name} must be an integer of at least 0")
            return value
        return None


def _text(value: object, name: str) -> str:
    """A text that can stand in a request."""
    if not isinstance(value, str):
        raise _Bad(f"{name} must be, or contain only, strings")
    if "\0" in value:
        raise _Bad(f"{name} has a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Bad(f"{name} contains an incomplete character (a lone surrogate)") from None
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Whether the hidden tests pass; None where they could not be run. `told` is why not, or the end of the output."""

    resolved: bool | None
    told: str = ""


async def evaluate(
    workspaces: WorkspaceProvider, repo: pb.RepoRef, environment: pb.EnvironmentSpec, hidden: Hidden, patch: str
) -> Evaluation:
    """Run a record's hidden tests on a patch of its repository."""
    if not patch:
        return Evaluation(resolved=False, told="there is no patch")
    if not all(_is_pytest_id(test_id) for test_id in (*hidden.fail_to_pass, *hidden.pass_to_pass)):
        return Evaluation(resolved=None, told="its tests do not have pytest names")
    name = f"evaluate-{uuid.uuid4().hex[:12]}"
    spec = EnvironmentSpec(
        setup=tuple(environment.setup_commands),
        variables=dict(environment.variables),
        path=tuple(environment.path_directories),
        detect=not environment.disable_detection,
        test_command=environment.test_command,
    )
    location = RepoRef(
        location=repo.path or repo.url, ref=repo.ref, commit=repo.commit, uncommitted=UncommittedChanges.IGNORE
    )
    try:
        pinned = await workspaces.pin(DEFAULT_TENANT, location)
        ready = await workspaces.environment(pinned, spec)
        async with workspaces.open(name, "tests", pinned, ready) as clone:
            return await _verdict(clone, hidden, patch)
    except FleetError as fault:
        return Evaluation(resolved=None, told=str(fault))
    finally:
        with suppress(NotFound):
            await workspaces.release(name)


async def _verdict(clone: Clone, hidden: Hidden, patch: str) -> Evaluation:
    try:
        for change in (without_files_of(hidden.test_patch, patch), hidden.test_patch):
            if change.strip():
                await clone.apply(change.encode())
    except PatchRejected as fault:
        return Evaluation(resolved=False, told=str(fault))
    for argv in commands(hidden, clone.environment):
        result = await clone.run(Command(argv=argv, timeout_seconds=SECONDS, merge_stderr=True))
        if not result.ok:
            return Evaluation(resolved=False, told=_end(result))
    return Evaluation(resolved=True)


def commands(hidden: Hidden, environment: Environment) -> Generator[tuple[str, ...]]:
    """What is to be run, each to end with 0."""
    for line in hidden.commands:
        yield ("sh", "-c", line)
    ids = (*hidden.fail_to_pass, *hidden.pass_to_pass)
    for first in range(0, len(ids), _IDS_A_RUN):
        yield (*_pytest(environment.test_command), "-q", "--", *ids[first : first + _IDS_A_RUN])


def without_files_of(tests: str, patch: str) -> str:
    """A patch without its changes to the files that another one changes. Both as git writes them."""
    theirs = {line for line in tests.split("\n") if line.startswith(_FILE_HEADER)}
    lines: list[str] = []
    keeping = True
    # Lines end where git ends them, and nowhere else that Unicode knows of.
    for line in patch.split("\n"):
        if line.startswith(_FILE_HEADER):
            keeping = line not in theirs
        if keeping:
            lines.append(line)
    text = "\n".join(lines)
    return text if keeping or not text else f"{text}\n"


def _pytest(test_command: Sequence[str]) -> tuple[str, ...]:
    """How the repository runs pytest, without the arguments of its own."""
    if "pytest" in test_command:
        return tuple(test_command[: test_command.index("pytest") + 1])
    return ("python3", "-m", "pytest")


def _is_pytest_id(name: str) -> bool:
    return ".py" in name.partition("::")[0]


def _end(result: CommandResult) -> str:
    text = result.stdout.text().rstrip()[-_TOLD_CHARS:]
    return f"timed out\n{text}" if result.timed_out else text
