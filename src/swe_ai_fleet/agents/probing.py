"""What the agent is told that turns a task's statement into a checklist, and how its answer is read."""

from __future__ import annotations

from pydantic import Field, ValidationError

from swe_ai_fleet.agents.sub_agents.shapes import Shape, Text, objects_in, schema_of
from swe_ai_fleet.agents.templates import rendered
from swe_ai_fleet.domain.checklist import Requirement
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.text import well_formed

TOOLS = ("files_read_file", "files_search_in_files", "files_list_files")
MAX_STEPS = 8
MAX_REQUIREMENTS = 10
MAX_PROBES = 5
_MAX_COMMAND_CHARS = 2_000
_MAX_QUOTE_CHARS = 500
_LEAST_QUOTE_CHARS = 8


class RequirementShape(Shape):
    quote: Text = Field(description="Words of the statement, exactly as they stand there.")
    probe: Text = Field(default="", description="A shell command that exits with 0 where that is so; empty: none.")


class ChecklistShape(Shape):
    requirements: list[RequirementShape] = Field(default=[])


def schema() -> dict[str, object]:
    """The JSON schema of the answer."""
    return schema_of(ChecklistShape)


def instructions(*, directory: str) -> str:
    """What the agent is told of its task; trusted text."""
    return rendered("probe", directory=directory, requirements=MAX_REQUIREMENTS, probes=MAX_PROBES)


def statement(task: Task) -> str:
    """Where a task says what it wants."""
    return "\n\n".join(text.strip() for text in task.texts if text.strip())


def read_checklist(text: str, task: Task) -> tuple[Requirement, ...]:
    """The requirements in an agent's answer. One that is no quotation, or the second of its name, is left out.

    Raises ValueError with what is wrong, in words.
    """
    problem = "it holds no JSON object with the key requirements"
    said = " ".join(statement(task).split())
    for value in objects_in(well_formed(text.rpartition("</think>")[2])):
        if "requirements" not in value:
            continue
        try:
            shape = ChecklistShape.model_validate(value)
        except (ValidationError, RecursionError):
            problem = "its JSON object has another form than was asked for"
            continue
        quoted = [one for one in shape.requirements if _quotes(one, said)][:MAX_REQUIREMENTS]
        if quoted:
            return _bounded(quoted)
        problem = "nothing in it is a quotation of the statement"
    raise ValueError(problem)


def _quotes(one: RequirementShape, said: str) -> bool:
    quote = " ".join(one.quote.split())
    return _LEAST_QUOTE_CHARS <= len(quote) <= _MAX_QUOTE_CHARS and quote in said


def _bounded(shapes: list[RequirementShape]) -> tuple[Requirement, ...]:
    found: dict[str, Requirement] = {}
    probes = 0
    for one in shapes:
        command = one.probe.strip()
        if "\0" in command or len(command) > _MAX_COMMAND_CHARS or probes == MAX_PROBES:
            command = ""
        requirement = Requirement(quote=" ".join(one.quote.split()), probe=command)
        if requirement.name not in found:
            found[requirement.name] = requirement
            probes += bool(command)
    return tuple(found.values())
