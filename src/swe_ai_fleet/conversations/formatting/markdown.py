"""Markdown: the answer as the model wrote it, with its tables in pipes."""

from __future__ import annotations

from collections.abc import Sequence

from swe_ai_fleet.conversations.formatting.tables import Table, piped

_ESCAPED = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|~#"})


def markdown(text: str, tables: Sequence[Table] = ()) -> str:
    """The answer with its data below."""
    parts = [text.strip()] if text.strip() else []
    parts += ["\n\n".join(part for part in (titled(table.title), piped(table)) if part) for table in tables]
    return "\n\n".join(parts)


def titled(title: str) -> str:
    """The title of a table in bold; empty for none."""
    line = " ".join(title.split())
    return f"**{line.translate(_ESCAPED)}**" if line else ""
