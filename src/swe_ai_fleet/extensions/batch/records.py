"""The tasks of a batch: a file of records, one JSON object per line, or a directory of Harbor's task folders.

Records are those of SWE-bench and its relatives (Pro, Multi-SWE-bench, SWE-smith, R2E-Gym), or in our own format.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from swe_ai_fleet.domain.errors import FleetError, InvalidRequest
from swe_ai_fleet.domain.json_values import is_list, is_object, mapping, mappings, parse_json, string
from swe_ai_fleet.domain.text import check_identifier
from swe_ai_fleet.extensions.batch.harbor import CONFIG, HarborTask, read_task, resolved_variables
from swe_ai_fleet.extensions.batch.log_parsers import END, PARSERS, START

MAX_LINE_BYTES = 16 * 1024 * 1024
_MAX_ID_CHARS = 200
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9_-]+")
_PARSERS_BY_LANGUAGE = {"go": "parse_log_gotest", "rust": "parse_log_cargo", "python": "parse_log_pytest"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """The hidden tests that decide about a patch; agents never see them.

    Attributes:
        fail_to_pass: The tests that failed before and must pass; those of `pass_to_pass` passed before and still must.
        test_patch: Adds the tests; an agent's changes to its files are discarded.
        commands: Run instead of named tests; each must exit with 0.
        script: Run by bash instead of both; `log_parser` reads its output. In an image it tests the image's files.
        applies: Whether the script itself applies the patch at /workspace/patch.diff.
        fail_only: Whether a test passes unless it is reported as failed.
        expected: The required status of every test.
        task: A Harbor task, whose tests/test.sh decides. `needs` says why this fleet cannot run it.
    """

    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    test_patch: str = ""
    commands: tuple[str, ...] = ()
    script: str = ""
    applies: bool = False
    log_parser: str = ""
    fail_only: bool = False
    expected: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str = "/testbed"
    task: HarborTask | None = None
    needs: str = ""

    def __bool__(self) -> bool:
        return bool(self.fail_to_pass or self.pass_to_pass or self.commands or self.expected or self.task)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One task of a batch. `line` is its line in the file; numbers 0 mean the batch's own.

    It runs in `image`; `offline` forbids any network. `fault` is a patch on the base commit that introduces the fault
    to fix. `needs` says why it cannot be run; `notes` list deviations from its benchmark.
    """

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
    image: str = ""
    offline: bool = False
    fault: str = ""
    needs: str = ""
    notes: tuple[str, ...] = ()

    @property
    def creates_repository(self) -> bool:
        """Whether its repository is created for it."""
        return bool(self.fault or self.hidden.task)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """An invalid line and the reason; or an invalid task folder, whose `line` is its number in the order of names."""

    line: int
    reason: str
    folder: str = ""

    def __str__(self) -> str:
        return f"{self.folder or f'line {self.line}'}: {self.reason}"


def read_records(path: Path) -> tuple[list[TaskRecord], list[BadLine]]:
    """The tasks of a file or a directory, and its invalid lines or folders. Raises OSError."""
    records: list[TaskRecord] = []
    bad: list[BadLine] = []
    first: dict[str, int] = {}
    for number, read in _sources(path):
        try:
            record = _task_record(number, read) if isinstance(read, Path) else _record(number, read)
            if record.instance_id in first:
                raise _Bad(f"{record.instance_id!r} is already in line {first[record.instance_id]}")
        except (_Bad, FleetError) as fault:
            bad.append(BadLine(line=number, reason=str(fault), folder=read.name if isinstance(read, Path) else ""))
            continue
        first[record.instance_id] = number
        records.append(record)
    return records, bad


def _sources(path: Path) -> Generator[tuple[int, bytes | Path]]:
    """The lines of a file, or the task folders of a directory, which may be a task folder itself."""
    if path.is_dir():
        below = (task for task in path.iterdir() if (task / CONFIG).is_file() and not task.is_symlink())
        yield from enumerate([path] if (path / CONFIG).is_file() else sorted(below), start=1)
        return
    with path.open("rb") as file:
        yield from ((number, line) for number, line in enumerate(_lines(file), start=1) if line.strip())


def chosen(records: Iterable[TaskRecord], *, only: tuple[str, ...], limit: int) -> list[TaskRecord]:
    """The first records (`limit` 0: all) whose ids match one of the patterns (none: all)."""
    fitting = [
        record for record in records if not only or any(fnmatchcase(record.instance_id, pattern) for pattern in only)
    ]
    return fitting[: limit or None]


def without_image(record: TaskRecord) -> TaskRecord:
    """The record for this machine's own tools, with its tests run by pytest and their names."""
    if not record.image:
        return record
    needs = record.hidden.needs or (f"the image {record.image}" if record.hidden.expected else "")
    return replace(
        record,
        image="",
        hidden=replace(record.hidden, script="", needs=needs),
        notes=(*record.notes, f"the tools of this machine in place of the image {record.image}"),
    )


def task_id(batch: str, instance_id: str) -> str:
    """The fixed task id of a record of a batch: `batch-<batch>-<instance_id>`, shortened and hashed if invalid."""
    plain = f"batch-{batch}-{instance_id}"
    try:
        return check_identifier(plain, field="instance_id")
    except InvalidRequest:
        digest = hashlib.sha256(plain.encode()).hexdigest()[:10]
        return f"{_NOT_IN_AN_ID.sub('-', plain)[:110].strip('-')}-{digest}"


class _Bad(Exception):
    """Why a line is refused."""


def _lines(file: BinaryIO) -> Generator[bytes]:
    """The lines of a file; a longer one is cut one byte after the limit."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line
        while not line.endswith(b"\n") and (line := file.readline(MAX_LINE_BYTES + 1)):
            pass


def _task_record(number: int, folder: Path) -> TaskRecord:
    """A record made of a Harbor task folder."""
    task = read_task(folder)
    needs, variables = task.needs, dict[str, str]()
    try:
        variables = resolved_variables(task.variables, {})
    except InvalidRequest as fault:
        needs = needs or fault.message
    if not task.instruction.strip() and not needs:
        raise _Bad("instruction.md is empty")
    workdir = f"What the task calls {task.workdir} is your workspace, the repository's own directory."
    return TaskRecord(
        line=number,
        instance_id=task.name,
        description=task.instruction or task.name,
        context=workdir if task.workdir else "",
        variables=tuple(f"{name}={value}" for name, value in variables.items()),
        timeout_seconds=task.timeout_seconds,
        hidden=Hidden(task=task, workdir=task.workdir),
        image=task.image,
        offline=task.offline,
        needs=needs,
        notes=task.notes,
    )


def _record(number: int, line: bytes) -> TaskRecord:
    if len(line) > MAX_LINE_BYTES:
        raise _Bad(f"it has more than {MAX_LINE_BYTES} bytes")
    try:
        own = parse_json(line)
    except ValueError as fault:
        raise _Bad(f"not valid JSON: {fault}"[:200]) from None
    if not is_object(own):
        raise _Bad("not a JSON object")
    fields = _Fields({**own, **_as_swe_bench(own)})
    instance_id = fields.text("instance_id", "task_id", "id")
    if not instance_id or len(instance_id) > _MAX_ID_CHARS or not instance_id.isprintable():
        raise _Bad(f"instance_id must have 1 to {_MAX_ID_CHARS} printable characters")
    description = fields.text("problem_statement", "task", "task_description", "description")
    if not description.strip():
        raise _Bad("problem_statement is empty")
    return TaskRecord(
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
        rounds=fields.number("rounds"),
        timeout_seconds=fields.number("timeout_seconds") or 0,
        hidden=_hidden(fields),
        image=fields.text("image"),
        fault=fields.text("fault"),
    )


def _hidden(fields: _Fields) -> Hidden:
    script, log_parser = fields.text("eval_script"), fields.text("log_parser")
    needs = fields.text("evaluation_needs")
    if script and log_parser not in PARSERS:
        needs = f"the log parser {log_parser or 'of its language'}, which this fleet does not have"
    return Hidden(
        fail_to_pass=fields.texts("FAIL_TO_PASS"),
        pass_to_pass=fields.texts("PASS_TO_PASS"),
        test_patch=fields.text("test_patch"),
        commands=fields.texts("evaluation"),
        script=script,
        applies=fields.text("applies") == "script",
        log_parser=log_parser,
        fail_only=fields.text("eval_type") == "fail_only",
        expected=dict(pair.rsplit("=", 1) for pair in fields.pairs("expected")),
        workdir=fields.text("workdir") or "/testbed",
        needs=needs,
    )


def _as_swe_bench(own: Mapping[str, object]) -> Mapping[str, object]:
    """The fields of SWE-bench's relatives under SWE-bench's names; empty for its own records."""
    readers = {"dockerhub_tag": _pro, "expected_output_json": _r2e_gym, "image_name": _swe_smith}
    if "fix_patch" in own and "number" in own:
        return _multi_swe(own)
    return next((read(own) for field_name, read in readers.items() if field_name in own), dict[str, object]())


def _multi_swe(own: Mapping[str, object]) -> Mapping[str, object]:
    """Multi-SWE-bench: tests are listed by their change of status; the statement is the resolved issues."""
    repo = f"{string(own.get('org'))}/{string(own.get('repo'))}"
    issues = mappings(own.get("resolved_issues")) or [own]
    texts = (f"{string(issue.get('title'))}\n\n{string(issue.get('body'))}".strip() for issue in issues)
    image = f"mswebench/{repo.replace('/', '_m_').lower()}:pr-{own.get('number')}"
    language = string(own.get("lang")) or string(own.get("language"))
    return {
        "repo": repo,
        "instance_id": own.get("instance_id") or f"{repo.replace('/', '__')}-{own.get('number')}",
        "base_commit": mapping(own, "base").get("sha"),
        "problem_statement": "\n\n".join(texts),
        "FAIL_TO_PASS": [test for key in ("f2p_tests", "s2p_tests", "n2p_tests") for test in mapping(own.get(key))],
        "PASS_TO_PASS": list(mapping(own.get("p2p_tests"))),
        "image": own.get("image") or image,
        "workdir": f"/home/{string(own.get('repo'))}",
        "applies": "script",
        "eval_script": "cp /workspace/patch.diff /home/fix.patch\n"
        f"echo '{START}'\nbash /home/fix-run.sh\necho '{END}'\n",
        "log_parser": own.get("log_parser") or _PARSERS_BY_LANGUAGE.get(language.lower()),
    }


def _pro(own: Mapping[str, object]) -> Mapping[str, object]:
    """SWE-bench Pro: the statement includes requirements and the interface."""
    sections = ((key.title(), string(own.get(key))) for key in ("requirements", "interface"))
    parts = [string(own.get("problem_statement")), *(f"{title}:\n{text}" for title, text in sections if text.strip())]
    return {
        "problem_statement": "\n\n".join(parts),
        "FAIL_TO_PASS": own.get("fail_to_pass") or own.get("FAIL_TO_PASS"),
        "PASS_TO_PASS": own.get("pass_to_pass") or own.get("PASS_TO_PASS"),
        "image": f"jefzda/sweap-images:{string(own.get('dockerhub_tag'))}",
        "workdir": "/app",
        "evaluation_needs": "the run scripts of SWE-bench Pro, which are no part of its records",
    }


def _r2e_gym(own: Mapping[str, object]) -> Mapping[str, object]:
    """R2E-Gym: every test has to end as recorded."""
    name, commit = string(own.get("repo_name")) or string(own.get("repo")), string(own.get("commit_hash"))
    try:
        expected = mapping(parse_json(string(own.get("expected_output_json")) or "{}"))
    except ValueError:
        raise _Bad("expected_output_json is not valid JSON") from None
    return {
        "repo": name,
        "instance_id": own.get("instance_id") or f"{name}-{commit}",
        "base_commit": commit,
        "image": own.get("docker_image"),
        "expected": expected,
        "eval_script": f"echo '{START}'\nbash /root/run_tests.sh\necho '{END}'\n",
        "log_parser": "parse_log_pytest",
    }


def _swe_smith(own: Mapping[str, object]) -> Mapping[str, object]:
    """SWE-smith: the patch introduces the fault."""
    tests = [*_Fields(own).texts("FAIL_TO_PASS"), *_Fields(own).texts("PASS_TO_PASS")]
    files = shlex.join(sorted({test.partition("::")[0] for test in tests}))
    run = f"pytest --disable-warnings --color=no --tb=no --verbose -rA -- {files}"
    script = f"source /opt/miniconda3/bin/activate testbed\necho '{START}'\n{run}\necho '{END}'\n"
    return {
        "fault": own.get("patch"),
        "image": own.get("image_name"),
        "eval_script": own.get("eval_script") or script,
        "log_parser": own.get("log_parser") or "parse_log_pytest",
    }


@dataclass(frozen=True, slots=True)
class _Fields:
    """A line's fields with their types checked. A null field counts as missing."""

    values: Mapping[str, object]

    def text(self, *names: str) -> str:
        """The first of these fields that is present."""
        present = (name for name in names if self.values.get(name) not in (None, ""))
        return next((_text(self.values[name], name) for name in present), "")

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings: a JSON list, a string with a JSON list (as in SWE-bench), or a single string."""
        value = self.values.get(name)
        if isinstance(value, str) and value.lstrip().startswith("["):
            try:
                value = parse_json(value)
            except ValueError:
                raise _Bad(f"{name} must be a list") from None
        if value is None or value == "":
            return ()
        value = [value] if isinstance(value, str) else value
        if not is_list(value):
            raise _Bad(f"{name} must be a list")
        items = tuple(_text(item, name) for item in value)
        if not all(item.strip() for item in items):
            raise _Bad(f"{name} contains an empty string")
        return items

    def pairs(self, name: str) -> tuple[str, ...]:
        """An object of strings, each as KEY=VALUE."""
        value = self.values.get(name) or dict[str, object]()
        if not is_object(value):
            raise _Bad(f"{name} must be an object")
        return tuple(f"{_text(key, name)}={_text(raw, name)}" for key, raw in value.items())

    def number(self, *names: str) -> int | None:
        name = next((name for name in names if self.values.get(name) is not None), "")
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise _Bad(f"{name} must be an integer of at least 0")
        return value


def _text(value: object, name: str) -> str:
    """A string that is valid in a request."""
    if not isinstance(value, str):
        raise _Bad(f"{name} must be, or contain only, strings")
    if "\0" in value:
        raise _Bad(f"{name} has a NUL character")
    return value
