"""Answers as channels take them: read, escaped, cut into pages, with tables."""

from __future__ import annotations

import sys
from types import FrameType

from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet import conversations
from swe_ai_fleet.conversations import TELEGRAM_UNITS, Channel, Table, rendered, units
from tests.markdown_v2 import parse
from tests.tables import table

_BITS = st.sampled_from(
    ["**", "*", "_", "__", "~~", "`", "``", "```", "```py\n", "\n```\n", "[", "](http://a.b/c_(d))", "](", "]", ")",
     "!", "\\", "> ", "\n> ", "\n# ", "\n- ", "\n1. ", "\n", "\n\n", " ", "| a | b |\n|---|---|\n| 1 | 2 |\n", "|",
     "<http://x.y>", "a", "word", "snake_case", "2*3", "😀", "漢", "e\u0301", "---", "\n---\n", ".", "#", "+", "=", "{",
     "}", "\0", "\ud83d"]
)  # fmt: skip
MARKDOWN = st.lists(st.one_of(_BITS, st.text(max_size=12)), max_size=60).map("".join)


def telegram(text: str, **more: int) -> tuple[str, ...]:
    return conversations.pages(text, Channel.TELEGRAM, **more)


class TestTelegram:
    @table(
        ("markdown", "expected"),
        [
            ("Hello.", "Hello\\."),
            ("**bold** and *it* and ~~gone~~", "*bold* and _it_ and ~gone~"),
            ("snake_case_name 2*3*4", "snake\\_case\\_name 2\\*3\\*4"),
            ("# Title: a.b", "*Title: a\\.b*"),
            ("> said **so**", ">said *so*"),
            ("`a_b` and `c\\d`", "`a_b` and `c\\\\d`"),
            ("[text](https://a.b/c_(d))", "[text](https://a.b/c_(d\\))"),
            ("[x](javascript:alert)", "\\[x\\]\\(javascript:alert\\)"),
            ("```python\nx = `1`\n```", "```python\nx = \\`1\\`\n```"),
            ("a **not closed", "a \\*\\*not closed"),
            ("\\*literal\\*", "\\*literal\\*"),
        ],
    )
    def test_markdown_becomes_entities(self, markdown: str, expected: str) -> None:
        assert telegram(markdown) == (expected,)
        parse(expected)

    @given(MARKDOWN, st.integers(128, 400))
    @settings(max_examples=60)
    def test_every_page_is_taken_is_short_enough_and_together_they_say_the_same(self, text: str, limit: int) -> None:
        whole = telegram(text, limit=0)
        cut = telegram(text, limit=limit)
        assert all(0 < units(page) <= limit and page.strip() for page in cut)
        said = [character for page in cut for character, _ in parse(page).bare]
        assert said == [character for page in whole for character, _ in parse(page).bare]

    def test_a_long_block_of_code_is_closed_and_opened_again(self) -> None:
        code = "\n".join(f"line_{number} = `{number}`" for number in range(800))
        cut = telegram(f"Here:\n```python\n{code}\n```\nDone.")
        assert len(cut) > 3
        assert all(page.startswith("```python\n") or number == 0 for number, page in enumerate(cut))
        assert all(page.endswith("\n```") for page in cut[:-1])
        assert cut[-1].endswith("Done\\.")
        lines = [line for page in cut for line in parse(page).text.splitlines() if line.startswith("line_")]
        assert lines == code.splitlines()

    @table("text", ["`" * 5 + "``a" * 6_000, "***a" * 5_000])
    def test_work_is_linear(self, text: str) -> None:
        # Both are longer than a page: twice the text is twice the work, and would be four times were it quadratic.
        half, whole = _steps(text[: len(text) // 2]), _steps(text)
        assert whole < 3 * half


def _steps(text: str) -> int:
    """How many calls it takes, of Python and of C, to write a text; what a clock says depends on the machine."""
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps
        steps += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = telegram(text)
    finally:
        sys.setprofile(before)
    assert all(units(page) <= TELEGRAM_UNITS for page in found)
    return steps


class TestOthers:
    TEXT = "# Title\n\n**bold** `code` [text](https://a.b) <https://c.d>\n\n- one\n\n```py\nx = 1\n```\n> said"

    def test_plain_has_no_marks_and_markdown_stays_as_it_is(self) -> None:
        plain = "Title\n\nbold code text (https://a.b) https://c.d\n\n• one\n\nx = 1\n> said"
        assert rendered(self.TEXT, Channel.PLAIN) == plain
        assert rendered(self.TEXT, Channel.MARKDOWN) == self.TEXT


class TestTables:
    TABLE = Table.of([{"id": 1, "name": "Ä漢字", "note": None}, {"id": 22, "name": "b|c", "note": True}], title="Two")

    def test_each_channel_shows_it_below_the_answer(self) -> None:
        assert "Two" in rendered("Here.", Channel.PLAIN, [self.TABLE])
        assert "**Two**" in rendered("Here.", Channel.MARKDOWN, [self.TABLE])
        (page,) = conversations.pages("Here.", Channel.TELEGRAM, [self.TABLE])
        assert parse(page).text.splitlines()[2:4] == ["Two", "id  name   note"]

    def test_what_is_too_wide_is_cut_with_a_note(self) -> None:
        wide = Table(columns=tuple(f"column{n}" for n in range(20)), rows=(tuple("x" * 50 for _ in range(20)),) * 60)
        for channel, width, first in ((Channel.PLAIN, 118, 8), (Channel.MARKDOWN, 1_000, 12)):
            lines = rendered("", channel, [wide]).splitlines()
            assert all(len(line) <= width for line in lines[:-2])
            assert f"columns left out: column{first}" in lines[-2]
            assert lines[-1] == "(10 more rows)"
