"""Masking of secret values, in all the encodings in which they leak."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.tools.unescaped import DerivedText, unescaped, views

SHORTEST = 6
"""Shorter values are not masked: they occur by chance in harmless text."""
CUT_SHORTEST = 4
"""Where a text was cut, this many characters of a secret at the edge are masked."""
_ARMOUR = ("-----BEGIN ", "-----END ")
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")


_SECRET_PARAMETERS = frozenset({"password", "sslpassword", "passwd"})


def url_secrets(urls: Iterable[str]) -> frozenset[str]:
    """What must be masked of URLs that log in: each whole and each password in it, as written and as decoded.

    Hand these to the mask of a pipeline that several tools share, so that no argument or output of theirs shows them.
    """
    values: set[str] = set()
    for url in urls:
        try:
            parts = urlsplit(url)
        except ValueError:
            values.add(url)
            continue
        userinfo, at, _ = parts.netloc.rpartition("@")
        password = userinfo.partition(":")[2]
        # The path of a file is no secret.
        if parts.scheme != "sqlite" or at:
            values |= {url, userinfo}
        values |= {password, unquote(password)}
        values |= {value for name, value in parse_qsl(parts.query) if name in _SECRET_PARAMETERS}
    return frozenset(value for value in values if value)


def forms(values: Iterable[str]) -> tuple[set[str], set[str], set[str]]:
    """All forms of the values and of their lines, each also without surrounding white space.

    They are forms as text (lower-case, escapes undone), as base64, and as hexadecimal.
    """
    written = {part for value in values for part in _parts(value)}
    raw = {encoding for value in written for encoding in _encodings(value)}
    plain = {
        folded
        for value in written
        for variant in (value, value.upper(), value.lower(), value.replace(" ", "+"), _as_latin(value))
        for text in _layers(variant)
        if len(folded := fold(text)) >= SHORTEST
    }
    return plain, {form for secret in raw for form in _base64_forms(secret)}, {secret.hex() for secret in raw}


def fold(text: str) -> str:
    """The text in lower case, without a change of its length."""
    if text.isascii():
        return text.lower()
    # The one letter whose lower case has two characters, and the one whose lower case depends on its position.
    return text.replace("İ", "i").lower().replace("ς", "σ")  # noqa: RUF001 - sigma it is


class Needles:
    """Strings to find in texts, also where a text was cut in the middle of one."""

    def __init__(self, words: Iterable[str], *, encoded: bool = False) -> None:
        self._words = sorted(words)
        self._encoded = encoded
        self._heads: dict[str, list[str]] = {}
        self._tails: dict[str, list[str]] = {}
        self._firsts: dict[str, list[str]] = {}
        for word in self._words:
            self._heads.setdefault(word[:CUT_SHORTEST], []).append(word)
            self._tails.setdefault(word[-CUT_SHORTEST:], []).append(word)
            self._firsts.setdefault(word[0], []).append(word)
        self.longest = max(map(len, self._words), default=0)
        self._edges = tuple(self._heads | self._tails)

    def absent(self, text: str) -> bool:
        """Whether a text holds neither a needle nor a cut one, as either has a needle's first or last characters."""
        for edge in self._edges:  # noqa: SIM110  (a generator costs more than the search)
            if edge in text:
                return False
        return True

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """The positions of needles, overlapping ones included."""
        for word in self._words:
            start = text.find(word)
            while start >= 0:
                yield self._widened(text, start, start + len(word))
                start = text.find(word, start + 1)

    def cut_before(self, text: str, end: int, floor: int, *, share: int = 0) -> int:
        """The start of a needle that was cut at `end`, not before `floor`; -1 if there is none.

        With a `share`, the rest must have at least one `share`-th of the needle, and six characters.
        """
        for match in self._heads_at.finditer(text, max(floor, end - self.longest), end):
            for word in self._heads[match[1]]:
                if end - match.start() >= _enough(word, share) and word.startswith(text[match.start() : end]):
                    return match.start()
        return -1

    def cut_after(self, text: str, start: int, ceiling: int, *, share: int = 0, skip: int = 0) -> int:
        """The end of a needle whose beginning was cut off at `start`; the counterpart of `cut_before`.

        Up to `skip` other characters may precede the rest of the needle.
        """
        last_end = -1
        for match in self._tails_at.finditer(text, start, min(ceiling, start + self.longest)):
            end = match.end(1)
            for word in self._tails[match[1]]:
                if any(
                    end - begin >= _enough(word, share) and word.endswith(text[begin:end])
                    for begin in range(start, min(start + skip, match.start()) + 1)
                ):
                    last_end = end
        return last_end

    def pending(self, text: str) -> int:
        """The position at which the text's end may be the beginning of a needle; the text's length if it is none."""
        for start in range(max(0, len(text) - self.longest + 1), len(text)):
            if any(word.startswith(text[start:]) for word in self._firsts.get(text[start], ())):
                return max(0, start - 1) if self._encoded else start
        return len(text)

    @cached_property
    def _heads_at(self) -> re.Pattern[str]:
        return _overlapping(self._heads)

    @cached_property
    def _tails_at(self) -> re.Pattern[str]:
        return _overlapping(self._tails)

    def _widened(self, text: str, start: int, end: int) -> tuple[int, int]:
        """The span with adjacent base64 characters, which may hold bits of the needle, and with padding."""
        if not self._encoded:
            return start, end
        if start and text[start - 1] in _BASE64:
            start -= 1
        if end < len(text) and text[end] in _BASE64:
            end += 1
        while end < len(text) and text[end] == "=":
            end += 1
        return start, end


def _overlapping(pieces: Iterable[str]) -> re.Pattern[str]:
    """A pattern of literals, grouped by first character so that most positions cost one comparison."""
    groups: dict[str, list[str]] = {}
    for piece in pieces:
        groups.setdefault(piece[0], []).append(re.escape(piece[1:]))
    choices = (f"{re.escape(first)}(?:{'|'.join(rests)})" for first, rests in groups.items())
    return re.compile(f"(?=({'|'.join(choices)}))", re.DOTALL)


def _enough(word: str, share: int) -> int:
    return max(SHORTEST, len(word) // share) if share else CUT_SHORTEST


def _parts(value: str) -> Iterator[str]:
    lines = value.splitlines() if len(value.splitlines()) > 1 else []
    for part in (value, value.strip(), *lines, *(line.strip() for line in lines)):
        if len(part) >= SHORTEST and not part.isspace() and not (part in lines and part.startswith(_ARMOUR)):
            yield part


def _layers(value: str) -> Iterator[str]:
    """The value, and the value with each layer of its own escapes undone, as happens when a text around it is read."""
    yield value
    while (plain := unescaped(value)) != value:
        value = plain
        yield value


def _encodings(value: str) -> Iterator[bytes]:
    """The bytes of a value that may be encoded: as it is, or as part of a JSON document or a URL."""
    for text in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value, safe="")):
        yield text.encode("utf-8", "replace")
    yield quote_plus(value).encode()


def _as_latin(value: str) -> str:
    """The value's UTF-8 bytes as characters, as escapes of single bytes are read."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("latin-1")


def _base64_forms(raw: bytes) -> Iterator[str]:
    # A value has another form at each alignment within a longer text; outer characters also hold neighbouring bits.
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + raw).decode().rstrip("=")
        stable = encoded[(0, 2, 3)[offset] : len(encoded) - (0 if (offset + len(raw)) % 3 == 0 else 1)]
        yield stable
        yield stable.replace("+", "-").replace("/", "_")


MASK = "[masked]"
_CUTS = re.compile(r"\.{3,}|…")
"""The marks of omissions in texts of our tools and of most programs."""
_ESCAPE_BEGUN = re.compile(
    r"(?=[\ud800-\udfff%\\&])[\ud800-\udfff]{0,3}"
    r"(?:%[0-9A-Fa-f]?|\\(?:[ux][0-9A-Fa-f]{0,3}|[0-3][0-7]?)?|&#?\w{0,7})?\Z"
)
"""An incomplete escape, or half of a character, at the end of a text."""
_LONGEST_ESCAPE_LEFT = 5
_MODEST = 3
"""At the ends of a text, which need not be cuts, only a third of a secret or more is masked; less may be chance."""
_LONGEST_ESCAPE = 12
_EXPANSION = 16


class Secrets:
    """Known secret values; calling it masks them in a text.

    It finds a value in any case, as base64 at every alignment (also URL-safe, also in broken lines), as hexadecimal,
    and within up to three layers of escapes (percent-encoding of any part, JSON, Python, shell, XML). Each line of a
    value of several lines is masked too. Where a text is marked as cut ("...", "…"), four characters of a value at the
    edge are enough; at the text's own ends a third of it. Values shorter than six characters are ignored.

    Args:
        values: The secrets, unencoded.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        plain, encoded, hexadecimal = forms({well_formed(value) for value in values if len(value) >= SHORTEST})
        self._plain = Needles(plain)
        self._encoded = Needles(encoded, encoded=True)
        self._hexadecimal = Needles(hexadecimal)

    def __call__(self, text: str) -> str:
        return _masked(text, spans) if (spans := self.spans(text)) else text

    def stream(self) -> SecretStream:
        """A mask for a text that arrives in pieces."""
        return SecretStream(self)

    def spans(self, text: str, *, whole: bool = True) -> list[tuple[int, int]]:
        """The positions of secrets in a text, in order and without overlaps.

        Args:
            text: The text.
            whole: Whether the text is complete, rather than a piece of a longer one.
        """
        spans_found: list[tuple[int, int]] = []
        for view, needles, positions in self._searches(text):
            if needles.absent(positions):
                continue
            for start, end in (*needles.spans(positions), *_at_cuts(positions, needles, whole=whole)):
                spans_found.append(view.origin(start, end))
        return _merged(spans_found)

    def pending(self, text: str) -> int:
        """Where a secret may begin that the text does not hold completely; the text's length if there is none."""
        if not self._plain.longest:
            return len(text)
        hold = len(text)
        for view, needles, shown in self._searches(text):
            # An escape at the end may be incomplete: the text before it decides.
            begun = _ESCAPE_BEGUN.search(shown, max(0, len(shown) - _LONGEST_ESCAPE))
            until = begun.start() if begun else len(shown)
            start = min(until, needles.pending(shown[:until]))
            if start < len(shown):
                hold = min(hold, view.origin(start, len(shown))[0])
        return max(hold, len(text) - _EXPANSION * max(self._plain.longest, self._encoded.longest))

    def _searches(self, text: str) -> Iterator[tuple[DerivedText, Needles, str]]:
        for view in views(text) if self._plain.longest and text else ():
            folded, joined = fold(view.text), view.without_line_ends()
            yield view, self._plain, folded
            yield joined, self._encoded, joined.text
            yield joined, self._hexadecimal, folded if joined is view else fold(joined.text)


class SecretStream:
    """Masks a text that arrives in pieces, holding back a possible beginning of a secret."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = ""

    def feed(self, chunk: str) -> str:
        """The masked text that can be shown after this chunk."""
        text = self._held + chunk
        hold = self._secrets.pending(text)
        spans = self._secrets.spans(text, whole=False)
        for start, end in reversed(spans):
            if start < hold < end:
                hold = start
        self._held = text[hold:]
        return _masked(text[:hold], [span for span in spans if span[1] <= hold])

    def finish(self) -> str:
        text, self._held = self._held, ""
        return self._secrets(text)


def _at_cuts(text: str, needles: Needles, *, whole: bool) -> Iterator[tuple[int, int]]:
    """The remains of secrets where a text was cut, and at its two ends."""
    cuts = [match.span() for match in _CUTS.finditer(text)]
    edges = [(0, 0), *cuts, (len(text), len(text))]
    for (_, begin), (end, _) in pairwise(edges):
        # The piece between two cuts, without the brackets and line ends around the marks of cuts.
        while begin < end and text[begin] in "] \r\n" and begin:
            begin += 1
        last = end
        while last > begin and text[last - 1] in "[ \r\n" and end < len(text):
            last -= 1
        if begin or whole:
            yield from _at_begin(text, needles, begin, last, soft=not begin)
        if end < len(text) or whole:
            yield from _at_end(text, needles, begin, last, soft=end == len(text))


def _at_begin(text: str, needles: Needles, begin: int, end: int, *, soft: bool) -> Iterator[tuple[int, int]]:
    # The rest of an escape that was cut in two may precede it.
    share, skip = (_MODEST, 0) if soft else (0, _LONGEST_ESCAPE_LEFT)
    cut = needles.cut_after(text, begin, end, share=share, skip=skip)
    if cut >= 0:
        yield begin, cut


def _at_end(text: str, needles: Needles, begin: int, end: int, *, soft: bool) -> Iterator[tuple[int, int]]:
    escape = _ESCAPE_BEGUN.search(text, max(begin, end - _LONGEST_ESCAPE), end)
    for until in (end, escape.start() if escape else end):
        cut = needles.cut_before(text, until, begin, share=_MODEST if soft else 0)
        if cut >= 0:
            yield cut, end
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
    masked_to = 0
    for start, end in spans:
        pieces += (text[masked_to:start], MASK)
        masked_to = end
    return "".join((*pieces, text[masked_to:]))
