"""The thought inside of calls as JSON, heard while the JSON comes in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

_HEAD = re.compile(r'\s*+\{\s*+"thought"\s*+:\s*+"')
# Whole characters of a JSON string; half a surrogate pair waits for the other half.
_WHOLE = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*+'
)
_LONGEST_HEAD = 64
_LONGEST_ESCAPE = 12


class ThoughtDeltas:
    """Hears a reply in the JSON protocol piece by piece and passes on the text of its thought.

    A reply that does not begin like one of that protocol is passed on as it is.
    """

    def __init__(self, on_delta: Callable[[str], None]) -> None:
        self._on_delta = on_delta
        self._hear = self._begin
        self._held = ""

    def __call__(self, text: str) -> None:
        """Take the next piece."""
        self._hear(text)

    def _begin(self, text: str) -> None:
        self._held += text
        head = _HEAD.match(self._held)
        if head is not None:
            text, self._held, self._hear = self._held[head.end() :], "", self._go_on
            self._go_on(text)
        elif len(self._held) > _LONGEST_HEAD or self._held.lstrip()[:1] not in ("", "{"):
            self._hear = self._on_delta
            self._on_delta(self._held)

    def _go_on(self, text: str) -> None:
        text = self._held + text
        whole = _WHOLE.match(text)
        end = whole.end() if whole else 0
        self._held = text[end:]
        if self._held.startswith('"') or len(self._held) > _LONGEST_ESCAPE:
            self._hear = _ignore
        try:
            said: str = json.loads(f'"{text[:end]}"', strict=False)
        except ValueError:
            said = text[:end]
        if said:
            self._on_delta(said.encode("utf-8", "replace").decode())


def _ignore(text: str) -> None:
    """What follows the thought is calls."""
