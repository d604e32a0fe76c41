"""Reading the answers of runs that prepare an execution: the environment run and the checklist.

The agent of an environment run finds out what the tests need; another turns a task's statement into a checklist.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import TypeVar

from pydantic import Field, ValidationError

from swe_ai_fleet.agents.structured_output import Shape, Text, Texts, objects_in
from swe_ai_fleet.domain.checklist import Requirement
from swe_ai_fleet.domain.environment import EnvironmentProposal
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.test_run import Baseline
from swe_ai_fleet.domain.text import well_formed

S = TypeVar("S", bound=Shape)
ENVIRONMENT_TOOLS = ("files_read_file", "files_search_in_files", "files_list_files", "shell_run_command", "tests_run")
MAX_ENVIRONMENT_STEPS = 15
MAX_LINES = 20
_MAX_LINE_CHARS = 2_000
_MAX_NOTES_CHARS = 2_000
_MAX_FAILURES = 20
_PROGRAMS = (
    *(("pytest",), ("py.test",), ("python", "-m", "pytest"), ("python3", "-m", "pytest")),
    *(("python", "-m", "unittest"), ("python3", "-m", "unittest")),
    *(("npm", "test"), ("npm", "run"), ("pnpm", "test"), ("pnpm", "run"), ("yarn", "test"), ("yarn", "run")),
    *(("node", "--test"), ("npx", "jest"), ("npx", "vitest", "run"), ("npx", "vitest"), ("npx", "mocha")),
    *(("go", "test"), ("cargo", "test"), ("make",)),
)
_SHELL = re.compile(r"[|&;<>()$`\n*?~{}]")
_HARMLESS = frozenset({"-v", "-q", "-vv", "-qq", "-race", "--workspace", "--all", "--all-features", "discover"})
CHECKLIST_TOOLS = ("files_read_file", "files_search_in_files", "files_list_files")
MAX_CHECKLIST_STEPS = 8
MAX_REQUIREMENTS = 10
MAX_PROBES = 5
_MAX_COMMAND_CHARS = 2_000
_MAX_QUOTE_CHARS = 500
_LEAST_QUOTE_CHARS = 8


class ProposalShape(Shape):
    setup: Texts = Field(default=[], description="Shell commands, in order.")
    test_command: Text = Field(default="", description="How the tests are run; empty: as it was detected.")
    notes: Text = Field(default="", description="What was learned, in a few sentences.")


def findings(baseline: Baseline) -> str:
    """The test results of the untouched commit and the decisions about its environment; untrusted text."""
    parts = [f"Commit {baseline.commit}", *_of_environment(baseline)]
    for suite in baseline.suites:
        parts.append(f"`{suite.command}` on the untouched commit: {suite.line}")
        failing = list(suite.tests.failing[:_MAX_FAILURES]) if suite.tests is not None else []
        for title, lines in (("Cannot be collected", suite.uncollected[:_MAX_FAILURES]), ("Fail", failing)):
            if lines:
                parts.append(f"{title}:\n" + "\n".join(f"- {line}" for line in lines))
        if suite.output:
            parts.append(f"The end of what it printed:\n{suite.output}")
    return "\n\n".join(parts)


def _of_environment(baseline: Baseline) -> list[str]:
    report = baseline.report
    decided = [
        f"- {decision.what}" + (f" ({decision.source})" if decision.source else "") for decision in report.decisions
    ]
    missing = [f"- {text}" for text in report.left_out]
    return [
        f"{title}:\n" + "\n".join(lines)
        for title, lines in (("What was decided", decided), ("What could not be installed", missing))
        if lines
    ]


def _answers(shape: type[S], text: str, *keys: str) -> Iterator[S]:
    """The objects of a shape in an agent's answer. Raises ValueError with the problem after the last."""
    problem = f"it is not a JSON object with the key {' or '.join(keys)}"
    for value in objects_in(well_formed(text.rpartition("</think>")[2])):
        if {*keys} & value.keys():
            try:
                yield shape.model_validate(value)
            except ValidationError:
                problem = "its JSON object has another form than was asked for"
    raise ValueError(problem)


def read_proposal(text: str, *, source: str) -> EnvironmentProposal:
    """The proposal in an agent's answer. Raises ValueError with its problem."""
    shape = next(_answers(ProposalShape, text, "setup", "test_command"))
    setup, command = tuple(shape.setup), shape.test_command.strip()
    if not setup and not command:
        raise ValueError(f"it proposes nothing: {shape.notes[:_MAX_NOTES_CHARS] or 'it does not say why'}")
    # People read these lines as they are, so they may have no control characters.
    lines = [line.replace("\t", " ") for line in (*setup, command)]
    if len(setup) > MAX_LINES or any(len(line) > _MAX_LINE_CHARS or not line.isprintable() for line in lines):
        raise ValueError(f"more than {MAX_LINES} commands, or one that is no line of {_MAX_LINE_CHARS} characters")
    if command and (reason := selects(command)):
        raise ValueError(f"the test command `{command[:200]}` {reason}")
    return EnvironmentProposal(setup=setup, test_command=command, notes=shape.notes[:_MAX_NOTES_CHARS], source=source)


def selects(command: str) -> str:
    """Why a model's test command is refused, else empty: its options could decide which tests count."""
    try:
        words = shlex.split(command)
    except ValueError:
        return "is no command"
    program = next((prefix for prefix in _PROGRAMS if tuple(words[: len(prefix)]) == prefix), None)
    if program is None or _SHELL.search(command):
        return "runs no test runner that is known here"
    words = [word for word in words[len(program) :] if word not in _HARMLESS]
    if option := next((word for word in words if word.startswith("-") or "=" in word), ""):
        return f"has the option {option[:64]}, which a proposal may not have: it could decide which tests count"
    return ""


class RequirementShape(Shape):
    quote: Text = Field(description="Words of the statement, exactly as they stand there.")
    probe: Text = Field(default="", description="A shell command that exits with 0 where that is so; empty: none.")


class ChecklistShape(Shape):
    requirements: list[RequirementShape] = Field(default=[])


def statement(task: Task) -> str:
    return "\n\n".join(text.strip() for text in task.texts if text.strip())


def read_checklist(text: str, task: Task) -> tuple[Requirement, ...]:
    """The requirements in an agent's answer, without duplicates and those that do not quote the statement.

    Raises ValueError with the problem.
    """
    task_text, problem = " ".join(statement(task).split()), ""
    try:
        for shape in _answers(ChecklistShape, text, "requirements"):
            quoted = [requirement for requirement in shape.requirements if _quotes(requirement, task_text)]
            if quoted:
                return _bounded(quoted[:MAX_REQUIREMENTS])
            problem = "nothing in it is a quotation of the statement"
    except ValueError as error:
        raise ValueError(problem or str(error)) from None
    raise AssertionError("the answers end with what is wrong")


def _quotes(requirement: RequirementShape, task_text: str) -> bool:
    quote = " ".join(requirement.quote.split())
    return _LEAST_QUOTE_CHARS <= len(quote) <= _MAX_QUOTE_CHARS and quote in task_text


def _bounded(shapes: list[RequirementShape]) -> tuple[Requirement, ...]:
    requirements: dict[str, Requirement] = {}
    probes = 0
    for shape in shapes:
        command = shape.probe.strip()
        if "\0" in command or len(command) > _MAX_COMMAND_CHARS or probes == MAX_PROBES:
            command = ""
        requirement = Requirement(quote=" ".join(shape.quote.split()), probe=command)
        if requirement.name not in requirements:
            requirements[requirement.name] = requirement
            probes += bool(command)
    return tuple(requirements.values())
