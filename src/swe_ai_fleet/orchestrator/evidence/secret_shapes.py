"""What looks like a secret: the forms of well-known keys, and random text that is given a telling name."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from swe_ai_fleet.orchestrator.evidence.patch import Line
from swe_ai_fleet.ports import SecretMask

_ALONE = r"(?<![A-Za-z0-9])"
_SHAPES = (
    ("a private key", re.compile(r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")),
    ("an AWS access key", re.compile(_ALONE + r"(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Z])")),
    ("a GitHub token", re.compile(_ALONE + r"(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60})")),
    ("a GitLab token", re.compile(_ALONE + r"glpat-[A-Za-z0-9_-]{20}")),
    ("a Slack token", re.compile(_ALONE + r"xox[abeoprs]-[A-Za-z0-9-]{10}")),
    ("a Slack webhook", re.compile(r"hooks\.slack\.com/services/T[A-Z0-9]{6,20}/B[A-Z0-9]{6,20}/[A-Za-z0-9]{16}")),
    ("a Google API key", re.compile(_ALONE + r"AIza[A-Za-z0-9_-]{35}")),
    ("a Google client secret", re.compile(_ALONE + r"GOCSPX-[A-Za-z0-9_-]{20}")),
    ("a Stripe key", re.compile(_ALONE + r"(?:sk|rk)_live_[A-Za-z0-9]{16}")),
    ("an npm token", re.compile(_ALONE + r"npm_[A-Za-z0-9]{36}")),
    ("a PyPI token", re.compile(_ALONE + r"pypi-[A-Za-z0-9_-]{40}")),
    ("a SendGrid key", re.compile(_ALONE + r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32}")),
    ("an API key", re.compile(_ALONE + r"sk-[A-Za-z0-9_-]{32}")),
)
_NAME = (
    r"(?i:(?:api|secret|private|access|auth|encryption|signing|master|client|account)[_-]?key"
    r"|token|secret|passw(?:or)?d|passphrase|credential)s?"
)
_ASSIGNED = re.compile(
    _NAME + r"""["'\]]{0,2}\s{0,3}(?::\s{0,3}\w{1,30}\s{0,3})?(?::=|=>|=|:)\s{0,3}["']([^"'\s]{16,200})["']"""
)
_LISTED = re.compile(_NAME + r"\s{0,3}[=:]\s{0,3}([^\s\"'#]{16,200})[ \t\r]*$", re.M)
_LISTING_SUFFIXES = (".env", ".ini", ".cfg", ".conf", ".properties", ".yml", ".yaml", ".toml", ".sh", ".envrc")
_PLACEHOLDER = re.compile(
    r"(?i)example|sample|dummy|fake|placeholder|change.?me|your|xxxx|redacted|masked|[<>{}$%*()]|://"
)
_IDENTIFIER = re.compile(r"[A-Za-z]+\d{0,4}(?:[_.:/@-]+(?:[A-Za-z]+\d{0,4}|\d{1,4}))*")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LEAST_BITS = 3.0
_CUT_MARKS = re.compile(r"\.{3,}|…")


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Where a secret stands, and of what kind it is; never the secret itself. `certain` says that its form is known."""

    line: int
    what: str
    certain: bool = True


def secrets_in(path: str, lines: Sequence[Line], mask: SecretMask) -> Iterator[Secret]:
    """The secrets among added lines of a file.

    Args:
        path: The file; in files of settings values need no quotes.
        lines: What is added.
        mask: Knows the fleet's own secrets.
    """
    text = "\n".join(line.text for line in lines)
    starts = [0, *accumulate(len(line.text) + 1 for line in lines)]

    def number(offset: int) -> int:
        return lines[bisect_right(starts, offset) - 1].number

    for kind, shape in _SHAPES:
        for match in shape.finditer(text):
            if "EXAMPLE" not in match[0]:
                yield Secret(line=number(match.start()), what=kind)
    # Marks of a cut make the mask take the beginning of a secret for one: in code they are an ellipsis.
    if _is_ours(mask, text):
        secret_lines = [line.number for line in lines if _is_ours(mask, line.text)]
        yield Secret(line=secret_lines[0] if secret_lines else lines[0].number, what="a secret of the fleet")
    assigned = [_ASSIGNED]
    if path.endswith(_LISTING_SUFFIXES) or "/.env" in f"/{path}":
        assigned.append(_LISTED)
    for pattern in assigned:
        for match in pattern.finditer(text):
            if _random(match[1]):
                yield Secret(line=number(match.start(1)), what="a random value under a secret's name", certain=False)


def _is_ours(mask: SecretMask, text: str) -> bool:
    plain = f"\n{_CUT_MARKS.sub(' ', text)}\n"
    return mask(plain) != plain


def _random(value: str) -> bool:
    """Whether a value reads like one that a machine drew: digits and letters mixed, no words, much information."""
    if _PLACEHOLDER.search(value) or _IDENTIFIER.fullmatch(value) or _UUID.fullmatch(value):
        return False
    if not re.search(r"\d", value) or not re.search(r"[A-Za-z]", value):
        return False
    counts = Counter(value)
    bits = -sum(count / len(value) * math.log2(count / len(value)) for count in counts.values())
    return bits >= _LEAST_BITS
