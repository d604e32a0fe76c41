"""Untrusted text on its way to a terminal."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.watching import clean, one_line, visible
from tests.tables import table


@table(
    ("hostile", "harmless"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jgone", "gone"),
        ("\x1bPdevice\x1b\\string", "string"),
        ("\x1bc", ""),
        ("safe\rEVIL", "safeEVIL"),
        ("a\r\nb", "a\nb"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("a\x00b\x08c\x7fd", "abcd"),
        ("\u202egnp.exe", "gnp.exe"),
        ("\u2066x\u2069", "x"),
        ("half \ud800 pair", "half \ufffd pair"),
        ("[bold]as it is[/bold]", "[bold]as it is[/bold]"),
        ("häß 日本 👩‍💻", "häß 日本 👩‍💻"),
    ],
)
def test_clean_leaves_only_what_can_be_read(hostile: str, harmless: str) -> None:
    assert clean(hostile) == harmless


@given(st.text(), st.integers(min_value=1, max_value=50))
def test_nothing_that_drives_a_terminal_survives(text: str, limit: int) -> None:
    for result in (clean(text), one_line(text), visible(text)):
        kinds = {unicodedata.category(c) for c in result if c not in "\n\t\u200d"}
        assert not kinds & {"Cc", "Cf", "Cs"}
        result.encode()
    assert "\n" not in one_line(text) and len(one_line(text, limit)) <= limit
    assert visible("+ok \u202e\x1b[2K\n") == "+ok <U+202E><U+001B>[2K\n"
