"""Masking of secrets by value, in every form in which they usually leak."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.tools.secrets.forms import SHORTEST, Needles, fold, forms
from swe_ai_fleet.tools.secrets.unescaped import View, views

MASK = "[masked]"
_CUTS = re.compile(r"\.{3,}|…")
"""What our tools, and most programs, write where they have left something out."""
_ESCAPE_BEGUN = re.compile(
    r"(?=[\ud800-\udfff%\\&])[\ud800-\udfff]{0,3}"
    r"(?:%[0-9A-Fa-f]?|\\(?:[ux][0-9A-Fa-f]{0,3}|[0-3][0-7]?)?|&#?\w{0,7})?\Z"
)
"""What may be an escape or a character whose rest is missing."""
_LONGEST_ESCAPE_LEFT = 5
_MODEST = 3
"""At the ends of a text, which need not be cuts, a third of a secret is taken for one; less may be chance."""
_LONGEST_ESCAPE = 12
_EXPANSION = 16


class Secrets:
    """Known secret values; calling it masks them in a text.

    Finds a value in capital or small letters, as base64 at every alignment (also URL-safe, also in broken lines), as
    hexadecimal, and behind up to three layers of escapes (percent-encoding of any part, JSON, Python, shell, XML). Of
    a value of several lines each line is masked as well. Where a text says that it was cut ("...", "…"), four
    characters of a value at the edge are enough; at the text's own ends a third of it. Values shorter than six
    characters are passed over.

    Args:
        values: The secrets as they are.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        found = forms({well_formed(value) for value in values if len(value) >= SHORTEST})
        self._plain = Needles(found.plain)
        self._encoded = Needles(found.encoded, encoded=True)
        self._hexadecimal = Needles(found.hexadecimal)

    def __call__(self, text: str) -> str:
        """The text with `[masked]` for each secret."""
        return _masked(text, self.spans(text)) if self._plain.longest else text

    def stream(self) -> SecretStream:
        """A mask for a text that arrives in pieces."""
        return SecretStream(self)

    def spans(self, text: str, *, whole: bool = True) -> list[tuple[int, int]]:
        """Where secrets stand in a text: in order, none overlapping another.

        Args:
            text: The text.
            whole: Whether its ends are those of all that there is, rather than of the piece at hand.
        """
        found: list[tuple[int, int]] = []
        for view, needles, shown in self._searches(text):
            for start, end in (*needles.spans(shown), *_at_cuts(shown, needles, whole=whole)):
                found.append(view.origin(start, end))
        return _merged(found)

    def pending(self, text: str) -> int:
        """From where on a text may belong to a secret whose rest is still to come; its length where nothing does."""
        if not self._plain.longest:
            return len(text)
        hold = len(text)
        for view, needles, shown in self._searches(text):
            # An escape at the end may not be whole yet: what stands before it decides.
            begun = _ESCAPE_BEGUN.search(shown, max(0, len(shown) - _LONGEST_ESCAPE))
            until = begun.start() if begun else len(shown)
            start = min(until, needles.pending(shown[:until]))
            if start < len(shown):
                hold = min(hold, view.origin(start, len(shown))[0])
        return max(hold, len(text) - _EXPANSION * max(self._plain.longest, self._encoded.longest))

    def _searches(self, text: str) -> Iterator[tuple[View, Needles, str]]:
        for view in views(text) if self._plain.longest else ():
            yield view, self._plain, fold(view.text)
            joined = view.without_line_ends()
            yield joined, self._encoded, joined.text
            yield joined, self._hexadecimal, fold(joined.text)


class SecretStream:
    """Masks a text that arrives in pieces, holding back what may be the beginning of a secret."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = ""

    def feed(self, chunk: str) -> str:
        """What may be shown now that `chunk` has come."""
        text = self._held + chunk
        hold = self._secrets.pending(text)
        spans = self._secrets.spans(text, whole=False)
        for start, end in reversed(spans):
            if start < hold < end:
                hold = start
        self._held = text[hold:]
        return _masked(text[:hold], [span for span in spans if span[1] <= hold])

    def finish(self) -> str:
        """The rest."""
        text, self._held = self._held, ""
        return self._secrets(text)


def _at_cuts(text: str, needles: Needles, *, whole: bool) -> Iterator[tuple[int, int]]:
    """What is left of secrets at the places where a text was cut, and at its two ends."""
    cuts = [match.span() for match in _CUTS.finditer(text)]
    edges = [(0, 0), *cuts, (len(text), len(text))]
    for (_, begin), (end, _) in pairwise(edges):
        # The piece between two cuts, without the brackets and line ends that notes of a cut have around them.
        while begin < end and text[begin] in "] \r\n" and begin:
            begin += 1
        last = end
        while last > begin and text[last - 1] in "[ \r\n" and end < len(text):
            last -= 1
        yield from _at_begin(text, needles, begin, last, soft=not begin, whole=whole)
        yield from _at_end(text, needles, begin, last, soft=end == len(text), whole=whole)


def _at_begin(
    text: str, needles: Needles, begin: int, end: int, *, soft: bool, whole: bool
) -> Iterator[tuple[int, int]]:
    if soft and not whole:
        return
    # What is left of an escape that was cut in two stands in front of the rest.
    share, skip = (_MODEST, 0) if soft else (0, _LONGEST_ESCAPE_LEFT)
    found = needles.cut_after(text, begin, end, share=share, skip=skip)
    if found >= 0:
        yield begin, found


def _at_end(text: str, needles: Needles, begin: int, end: int, *, soft: bool, whole: bool) -> Iterator[tuple[int, int]]:
    if soft and not whole:
        return
    escape = _ESCAPE_BEGUN.search(text, max(begin, end - _LONGEST_ESCAPE), end)
    for until in (end, escape.start() if escape else end):
        found = needles.cut_before(text, until, begin, share=_MODEST if soft else 0)
        if found >= 0:
            yield found, end
            return


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _masked(text: str, spans: Iterable[tuple[int, int]]) -> str:
    pieces: list[str] = []
    shown = 0
    for start, end in spans:
        pieces += (text[shown:start], MASK)
        shown = end
    return "".join((*pieces, text[shown:]))
