"""How long texts of stories may be, and how many there may be of them. Each check names the field at fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import check_identifier

MAX_TITLE_CHARS = 300
MAX_TEXT_CHARS = 20_000
MAX_ITEMS = 50
MAX_ITEM_CHARS = 2_000
MAX_NAME_CHARS = 128


def check_number(items: Sequence[str], *, field: str) -> None:
    """Whether there are so few. Raises InvalidRequest."""
    if len(items) > MAX_ITEMS:
        raise InvalidRequest(f"{len(items)} of {field} are too many", field=field, hint=f"at most {MAX_ITEMS}")


def check_title(text: str) -> None:
    """Whether a text is a title. Raises InvalidRequest."""
    if not text.strip():
        raise InvalidRequest("the title is empty", field="title")
    if len(text) > MAX_TITLE_CHARS:
        raise InvalidRequest(
            f"the title has {len(text)} characters",
            field="title",
            hint=f"at most {MAX_TITLE_CHARS}; the rest belongs into the description",
        )


def check_items(items: Sequence[str], *, field: str) -> None:
    """Whether there are so few texts, none of them empty or too long. Raises InvalidRequest."""
    check_number(items, field=field)
    for number, item in enumerate(items):
        if not item.strip() or len(item) > MAX_ITEM_CHARS:
            raise InvalidRequest(
                f"{field}[{number}] has {len(item)} characters",
                field=f"{field}[{number}]",
                hint=f"1 to {MAX_ITEM_CHARS}",
            )


def check_notes(notes: Mapping[str, str]) -> None:
    """Whether notes have names and texts that can be kept. Raises InvalidRequest."""
    for name in notes:
        check_identifier(name, field="notes")
    check_items(tuple(notes.values()), field="notes")
