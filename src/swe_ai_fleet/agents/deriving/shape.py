"""What a planner answers with, and how loosely it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, cast

from pydantic import BeforeValidator, Field

from swe_ai_fleet.agents.sub_agents.shapes import Said, Shape, Text, Texts, as_text

_MOST_READ = 200
_MAX_NAME_CHARS = 200
_HIGHEST = 9


def _as_name(value: object) -> str:
    return " ".join(as_text(value)[:_MAX_NAME_CHARS].split())


def _as_priority(value: object) -> int:
    """A priority between 0 and 9; 0 for what is no number."""
    try:
        number = int(str(value)[:10])
    except ValueError:
        return 0
    return min(_HIGHEST, max(0, number))


def _as_subtasks(value: object) -> object:
    """Subtasks in a list; models also write an object with their ids as keys."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        value = [{"id": name, **cast("Mapping[str, object]", one)} for name, one in pairs if isinstance(one, Mapping)]
    return cast("list[object]", value)[:_MOST_READ] if isinstance(value, list) else value


class SubtaskShape(Shape):
    id: Annotated[str, BeforeValidator(_as_name), Field(min_length=1)] = Field(
        description="A short name of its own, such as `parser` or `parser-tests`."
    )
    role: Text = Field(default="", description="The role that does it.")
    description: Said = Field(
        description="What is to be done, whole: whoever does it reads this, the task, and the code as it is by then."
    )
    depends_on: Texts = Field(default=[], description="The ids of the subtasks whose result it needs.")
    priority: Annotated[int, BeforeValidator(_as_priority)] = Field(
        default=0, description="0 to 9; of those that are ready, the higher goes first."
    )
    paths: Texts = Field(default=[], description="Globs of all files that it may change; none: any.")


class SplitShape(Shape):
    subtasks: Annotated[list[SubtaskShape], BeforeValidator(_as_subtasks), Field(min_length=1)] = Field(
        description="The subtasks, what comes first before what needs it."
    )
    reasoning: Text = Field(default="", description="Why it is split this way, in a sentence or two.")
