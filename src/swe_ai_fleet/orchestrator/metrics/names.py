"""Names that others chose, held to a number that memory has room for."""

from __future__ import annotations

MAX_NAMES = 100
OTHER = "(other)"
_MAX_CHARACTERS = 128


class Names:
    """Lets the first hundred names through; all others share one."""

    def __init__(self, most: int = MAX_NAMES) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The name to count under: printable and not too long."""
        known = self._known.get(name)
        if known is not None:
            return known
        if len(self._known) >= self._most:
            return OTHER
        cleaned = "".join(character if character.isprintable() else "?" for character in name[:_MAX_CHARACTERS])
        self._known[name] = cleaned
        return cleaned
