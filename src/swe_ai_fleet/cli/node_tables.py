"""The nodes of a workflow's run as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import cast

from rich.table import Table

from swe_ai_fleet.cli.tables import add_row, empty_table
from swe_ai_fleet.domain.event import NodeUpdated
from swe_ai_fleet.watching.text import one_line

_STYLES = {"completed": "green", "failed": "bold red", "paused": "yellow", "waiting": "yellow", "skipped": "dim"}
_WHAT = 100


def nodes_table(rows: Iterable[tuple[str, ...]]) -> Table:
    """A row a node: place, status, attempt, seconds, tokens, what it said or why it failed."""
    table = empty_table("node", "status", "attempt", "seconds", "tokens", "what")
    for *told, what in rows:
        add_row(table, *told, one_line(what, _WHAT), style=_STYLES.get(told[1], ""))
    return table


def node_row(update: NodeUpdated) -> tuple[str, ...]:
    """A node as its events tell it."""
    seconds = f"{update.duration_ms / 1000:.1f}" if update.duration_ms else ""
    tokens = f"{update.usage.total_tokens:,}" if update.usage.total_tokens else ""
    what = update.error or gist(update.output or update.inputs)
    return (update.node_id, str(update.status), str(update.attempt), seconds, tokens, what)


def gist(text: str) -> str:
    """An output in a few words: what an agent answered or a tool printed, else the JSON."""
    found: object = json.loads(text) if text else None
    if not isinstance(found, dict):
        return text
    fields = cast("dict[str, object]", found)
    return str(fields.get("answer") or fields.get("summary") or fields.get("content") or text)
