"""Texts of project knowledge: limits of their length and number, and their cleaning.

A check names the field at fault. Stored texts are well formed, without control characters, with secrets masked, and in
records cut to size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from swe_ai_fleet.domain.candidate import TestSummary
from swe_ai_fleet.domain.context import Decision, Story, StoryTask, StoryUpdated, WorkRecord
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.text import check_identifier, well_formed, without_login
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.truncation import truncate

MAX_TITLE_CHARS = 300
MAX_TEXT_CHARS = 20_000
MAX_ITEMS = 50
MAX_ITEM_CHARS = 2_000
MAX_NAME_CHARS = 128
T = TypeVar("T")


def check_number(items: Sequence[str], *, field: str) -> None:
    """Whether there are so few. Raises InvalidRequest."""
    if len(items) > MAX_ITEMS:
        raise InvalidRequest(f"{len(items)} entries in {field}; too many", field=field, hint=f"at most {MAX_ITEMS}")


def check_title(text: str) -> None:
    """Whether a text is a title. Raises InvalidRequest."""
    if not text.strip():
        raise InvalidRequest("the title is empty", field="title")
    if len(text) > MAX_TITLE_CHARS:
        raise InvalidRequest(
            f"the title has {len(text)} characters",
            field="title",
            hint=f"at most {MAX_TITLE_CHARS}; move the rest to the description",
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


MAX_INSTRUCTION_CHARS = 2_000
MAX_SUMMARY_CHARS = 4_000
MAX_PATHS = 300
MAX_NAMES = 100
_PATH_CHARS = 400
_NAME_CHARS = 200
_LOOKED_AT = 4
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Cleaner:
    """Cleans texts of callers before they are stored.

    Args:
        mask: Hides secrets.
    """

    def __init__(self, mask: SecretMask) -> None:
        self._mask = mask

    def text(self, text: str) -> str:
        """One text."""
        return self._mask(_CONTROL.sub("", well_formed(text.replace("\r\n", "\n"))))

    def story(self, story: Story) -> Story:
        return replace(
            story,
            title=self.text(story.title),
            description=self.text(story.description),
            acceptance_criteria=self._all(story.acceptance_criteria),
            notes=self._notes(story.notes),
        )

    def task(self, task: StoryTask) -> StoryTask:
        return replace(task, title=self.text(task.title), description=self.text(task.description))

    def decision(self, decision: Decision) -> Decision:
        return replace(
            decision,
            title=self.text(decision.title),
            rationale=self.text(decision.rationale),
            alternatives=self._all(decision.alternatives),
            decided_by=self.text(decision.decided_by),
        )

    def update(self, update: StoryUpdated) -> StoryUpdated:
        criteria = update.acceptance_criteria
        return replace(
            update,
            title=None if update.title is None else self.text(update.title),
            description=None if update.description is None else self.text(update.description),
            acceptance_criteria=None if criteria is None else self._all(criteria),
            notes=self._notes(update.notes),
        )

    def record(self, record: WorkRecord) -> WorkRecord:
        """A record with its texts cut, since no caller could be asked to shorten them."""
        return replace(
            record,
            plan_id=self._line(record.plan_id),
            kind=self._line(record.kind),
            role=self._line(record.role),
            repository=self._line(without_login(record.repository), _PATH_CHARS),
            instruction=self._cut(record.instruction, MAX_INSTRUCTION_CHARS),
            status=self._line(record.status),
            summary=self._cut(record.summary, MAX_SUMMARY_CHARS),
            commits=tuple(self._line(commit) for commit in record.commits[:MAX_NAMES]),
            branch=self._line(record.branch, _PATH_CHARS),
            files_changed=tuple(self._line(path, _PATH_CHARS) for path in record.files_changed[:MAX_PATHS]),
            operations={self._line(name): count for name, count in _first(record.operations)},
            tests=None if record.tests is None else self._tests(record.tests),
            checks={self._line(name): self._line(outcome) for name, outcome in _first(record.checks)},
            verdict=self._line(record.verdict),
        )

    def _tests(self, tests: TestSummary) -> TestSummary:
        return replace(tests, failing=tuple(self._line(name, _PATH_CHARS) for name in tests.failing[:MAX_NAMES]))

    def _all(self, texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.text(text) for text in texts)

    def _notes(self, notes: Mapping[str, str]) -> Mapping[str, str]:
        return {name: self.text(text) for name, text in notes.items()}

    def _line(self, text: str, limit: int = _NAME_CHARS) -> str:
        return " ".join(self.text(text[: _LOOKED_AT * limit]).split())[:limit]

    def _cut(self, text: str, limit: int) -> str:
        # The middle of a huge text is dropped before secrets are masked; a secret at the cut is masked as a part.
        return truncate(self.text(truncate(text, _LOOKED_AT * limit)), limit)


def _first(named: Mapping[str, T]) -> list[tuple[str, T]]:
    return list(named.items())[:MAX_NAMES]
