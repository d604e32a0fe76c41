"""Answers per channel: nothing lost, marks balanced, no page over the limit."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.function_calling.channels import (
    LEAST_UNITS,
    TELEGRAM_UNITS,
    Channel,
    escaped,
    pages,
    shortened,
    units,
    with_data,
)

SPECIAL = "_*[]()~`>#+-=|{}.!\\"
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]) | st.sampled_from(SPECIAL + "\n `*#\U0001f600"))
MARKDOWN = st.lists(
    st.one_of(
        TEXT,
        st.sampled_from(["```", "```python", "````", "**bold**", "`code`", "# Heading", "- item", "**open", "`open"]),
        st.text(alphabet="word ", min_size=1, max_size=400),
    ),
    max_size=30,
).map("\n".join)


def read_markdown_v2(page: str) -> str:
    """What Telegram would show, by its own rules; fails where the page breaks them."""
    shown: list[str] = []
    position, style = 0, ""
    while position < len(page):
        if style == "block" and page.startswith("```", position):
            position, style = position + 3, ""
            continue
        if not style and page.startswith("```", position):
            line = page.index("\n", position)
            position, style = line + 1, "block"
            continue
        character = page[position]
        if character == "\\":
            assert page[position + 1] in SPECIAL
            shown.append(page[position + 1])
            position += 2
            continue
        if character == "`":
            assert style in ("", "code"), "code inside of something else"
            style = "" if style else "code"
        elif character == "*" and style in ("", "bold"):
            style = "" if style else "bold"
        else:
            assert style in ("code", "block") or character not in SPECIAL, f"{character!r} is not escaped"
            shown.append(character)
        position += 1
    assert not style, f"{style} is not closed"
    return "".join(shown)


def solid(text: str) -> str:
    return "".join(text.split())


class TestTelegram:
    @given(MARKDOWN, st.integers(LEAST_UNITS, 600))
    def test_pages_are_balanced_within_the_limit_and_lose_nothing(self, text: str, limit: int) -> None:
        found = pages(text, Channel.TELEGRAM, limit=limit)
        assert all(0 < units(page) <= limit for page in found)
        assert all(solid(read_markdown_v2(page)) for page in found)
        whole = "".join(pages(text, Channel.PLAIN))
        assert solid("".join(map(read_markdown_v2, found))) == solid(whole)

    @given(TEXT)
    def test_escaping_shows_the_text_as_it_is(self, text: str) -> None:
        assert read_markdown_v2(escaped(text)) == text

    def test_what_is_read_of_markdown(self) -> None:
        text = "# Plan\nUse **two** steps: `a_b`.\n```python\nx = `1`\n```\nDone (really)!"
        assert pages(text, Channel.TELEGRAM) == (
            "*Plan*\nUse *two* steps: `a_b`\\.\n```python\nx = \\`1\\`\n```\nDone \\(really\\)\\!",
        )

    def test_4096_utf_16_units_a_page(self) -> None:
        emoji = "\U0001f600" * 5000
        found = pages(emoji, Channel.TELEGRAM)
        assert [units(page) for page in found] == [4096, 4096, 1808]
        assert "".join(found) == emoji
        assert TELEGRAM_UNITS == 4096

    def test_cuts_fall_on_lines_or_words(self) -> None:
        text = "\n".join(f"line number {number} of many" for number in range(400))
        for page in pages(text, Channel.TELEGRAM)[:-1]:
            assert page.endswith("many\n")
        words = "wonderful " * 1000
        assert all(page.endswith("wonderful ") for page in pages(words, Channel.TELEGRAM))

    def test_a_block_is_closed_and_opened_again(self) -> None:
        code = "\n".join(f"print({number})" for number in range(800))
        first, *others = pages(f"```python\n{code}\n```", Channel.TELEGRAM)
        assert first.endswith("\n```")
        assert others
        assert all(page.startswith("```python\n") and page.endswith("```") for page in (first, *others))

    def test_a_long_hostile_answer_takes_no_long_time(self) -> None:
        begun = time.perf_counter()
        for text in ("`" * 60_000, "**a" * 20_000, "*" * 60_000, "# " * 20_000, "```\n" * 14_000, "x" * 100_000):
            for channel in Channel:
                pages(text, channel, limit=4096)
        assert time.perf_counter() - begun < 10


class TestOthers:
    @given(MARKDOWN, st.integers(LEAST_UNITS, 600))
    def test_plain_pages(self, text: str, limit: int) -> None:
        found = pages(text, Channel.PLAIN, limit=limit)
        assert all(units(page) <= limit and page.strip() for page in found)
        assert solid("".join(found)) == solid("".join(pages(text, Channel.PLAIN)))

    @given(MARKDOWN, st.integers(LEAST_UNITS, 600))
    def test_markdown_pages(self, text: str, limit: int) -> None:
        found = pages(text, Channel.MARKDOWN, limit=limit)
        assert all(units(page) <= limit and page.strip() for page in found)
        letters = [character for character in text if character.isalpha()]
        kept = [character for page in found for character in page if character.isalpha()]
        # Languages of blocks stand on each page that goes on with one.
        assert len(kept) >= len(letters) - text.count("python") * len("python")

    def test_markdown_without_a_limit_is_left_alone(self) -> None:
        assert pages("# A\n\n**b**", Channel.MARKDOWN) == ("# A\n\n**b**",)
        assert pages(" \n", Channel.MARKDOWN) == pages("", Channel.PLAIN) == pages("\n", Channel.TELEGRAM) == ()

    def test_plain_text_has_no_marks(self) -> None:
        assert pages("# A\n**b** and `c`, 2 * 3 ** 4", Channel.PLAIN) == ("A\nb and c, 2 * 3 ** 4",)

    def test_a_limit_that_is_too_small(self) -> None:
        with pytest.raises(ValueError, match="at least 128"):
            pages("x", Channel.PLAIN, limit=10)


class TestShortened:
    @given(MARKDOWN, st.sampled_from(Channel), st.integers(2 * LEAST_UNITS, 600))
    def test_it_is_one_message(self, text: str, channel: Channel, limit: int) -> None:
        message = shortened(text, channel, limit=limit)
        assert units(message) <= limit
        if channel is Channel.TELEGRAM:
            read_markdown_v2(message)

    def test_the_note_says_how_much_is_missing(self) -> None:
        message = shortened("word " * 2000, Channel.TELEGRAM)
        assert message.endswith("more characters\\]")
        assert shortened("short", Channel.TELEGRAM) == "short"
        assert shortened("", Channel.TELEGRAM) == ""


class TestData:
    def test_records_are_a_table(self) -> None:
        text = with_data("Two cities:", [{"city": "Rome", "days": 3}, {"city": "Oslo", "note": "x" * 99}])
        lines = text.splitlines()
        assert lines[:4] == ["Two cities:", "", "```", "city  days  note"]
        assert lines[5].split() == ["Rome", "3"]
        assert len(lines[6]) < 60

    def test_anything_else_is_a_list(self) -> None:
        assert with_data("", {"a": [1, 2]}) == "```\na:\n  - 1\n  - 2\n```"
        assert with_data("x", None) == with_data("x", []) == "x"
        assert with_data("x", "```") == "x\n\n````\n```\n````"
