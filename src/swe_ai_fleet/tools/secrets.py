"""Masking of secrets by value, in every form in which they usually leak."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from urllib.parse import quote

MASK = "[masked]"
_SHORTEST = 6
"""Shorter values are not masked: they occur by chance and would riddle harmless text."""


class Secrets:
    """Known secret values; calling it masks them (plain, base64, URL-encoded) in a text."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {form for value in values if len(value) >= _SHORTEST for form in _forms(value)}
        self._forms = sorted(forms, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text


def _forms(value: str) -> Iterable[str]:
    raw = value.encode()
    yield value
    yield quote(value, safe="")
    # At each alignment within a longer text a value has another base64 form; the outer characters mix with neighbours.
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + raw).decode().rstrip("=")
        stable = encoded[(0, 2, 3)[offset] : len(encoded) - (0 if (offset + len(raw)) % 3 == 0 else 1)]
        if len(stable) >= _SHORTEST:
            yield stable
            yield stable.replace("+", "-").replace("/", "_")
