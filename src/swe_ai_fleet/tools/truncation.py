"""Cuts text to a length, with a note about the omission."""

from __future__ import annotations

import json
from itertools import islice

from swe_ai_fleet.domain.json_values import is_list, is_object, mapping

HEAD_SHARE = 0.5


def beginning(text: str, limit: int) -> str:
    """The text if it has at most `limit` characters, else its first `limit` and a note with its length."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[... these are the first {limit} of {len(text)} characters ...]"


def truncate(text: str, limit: int, whole: str = "") -> str:
    """The text if it has at most `limit` characters, else its head and tail around a note about the omission.

    `whole` is a path at which the whole text can be read. Cuts are at line ends if there is one in the last quarter of
    the head or the first quarter of the tail. The result never exceeds `limit` by more than the note.
    """
    if len(text) <= limit:
        return text
    head_end = round(limit * HEAD_SHARE)
    tail_start = len(text) - (limit - head_end)
    line_end = text.rfind("\n", head_end * 3 // 4, head_end)
    head_end = head_end if line_end < 0 else line_end + 1
    line_start = text.find("\n", tail_start, tail_start + (len(text) - tail_start) // 4)
    tail_start = tail_start if line_start < 0 else line_start + 1
    left_out = text[head_end:tail_start]
    where = f"; all of it: {whole}" if whole else ""
    note = f"[... {len(left_out)} characters, {left_out.count(chr(10))} lines left out{where} ...]"
    head, tail = text[:head_end], text[tail_start:]
    return f"{head}{'' if head.endswith(chr(10)) or not head else chr(10)}{note}\n{tail}"


_LEAST = 32
"""Characters for each item of a list or object; if that is too much, the last items are omitted."""


def bounded(value: object, limit: int) -> object:
    """A JSON value of the same type with at most about `limit` characters.

    Texts are cut by `truncate`; lists and objects that are too long lose their last items, which are counted.
    """
    if isinstance(value, str):
        return truncate(value, limit)
    if not (is_list(value) or is_object(value)) or len(json.dumps(value, ensure_ascii=False)) <= limit:
        return value
    count = min(len(value), max(1, limit // _LEAST))
    share, rest = limit // count, len(value) - count
    if is_list(value):
        return [*(bounded(part, share) for part in value[:count]), *([f"... {rest} more"] if rest else [])]
    bounded_parts = {name: bounded(part, share) for name, part in islice(mapping(value).items(), count)}
    return bounded_parts | {"...": f"{rest} more"} if rest else bounded_parts
