"""Plain text: what an answer says, without its marks."""

from __future__ import annotations

from collections.abc import Sequence

from swe_ai_fleet.conversations.formatting.document import Kind
from swe_ai_fleet.conversations.formatting.inline import Span
from swe_ai_fleet.conversations.formatting.tables import PLAIN_WIDTH


class PlainText:
    """How lines and code are written where no mark means anything."""

    width = PLAIN_WIDTH

    def line(self, spans: Sequence[Span], kind: Kind) -> str:
        """One line; a link is followed by where it leads."""
        text = "".join(_shown(spans, number) for number in range(len(spans)))
        return f"> {text}" if kind is Kind.QUOTE else text

    def fence(self, language: str) -> tuple[str, str]:
        """Nothing stands around code."""
        return "", ""

    def code(self, text: str) -> str:
        """Code as it is."""
        return text


def _shown(spans: Sequence[Span], number: int) -> str:
    span = spans[number]
    ends = number + 1 == len(spans) or spans[number + 1].link != span.link
    said = span.link.removeprefix("mailto:")
    return f"{span.text} ({said})" if span.link and ends and span.text not in (said, span.link) else span.text
