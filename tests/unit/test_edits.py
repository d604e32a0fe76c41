"""Replacing passages: exact, unique, and helpful where it cannot."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.tools import ToolFailure
from swe_ai_fleet.tools.files.edits import near_misses, replace_passage
from swe_ai_fleet.tools.files.excerpt import numbered, regions
from swe_ai_fleet.tools.files.syntax import syntax_error

MODULE = """\
import os


def load(path):
    with open(path) as file:
        return file.read()


def save(path, text):
    with open(path, "w") as file:
        file.write(text)
"""


class TestExact:
    def test_a_unique_passage(self) -> None:
        result = replace_passage(
            MODULE, "        return file.read()\n", "        data = file.read()\n        return data\n"
        )
        assert result.text == MODULE.replace("return file.read()", "data = file.read()\n        return data")
        assert (result.count, result.changed, result.tolerant) == (1, ((6, 7),), False)

    def test_several_places_are_named_by_line(self) -> None:
        with pytest.raises(ToolFailure, match=r"occurs 2 times, at lines 5, 10; add lines .* or set replace_all=true"):
            replace_passage(MODULE, "    with open(path", "    with io.open(path")

    def test_replace_all_says_where(self) -> None:
        result = replace_passage(MODULE, "(path", "(\n    path", replace_all=True)
        assert result.text == MODULE.replace("(path", "(\n    path")
        assert result.count == 4
        lines = result.text.split("\n")
        for first, last in result.changed:
            assert lines[first - 1].endswith("(")
            assert lines[last - 1].startswith("    path")


class TestTrailingWhiteSpace:
    def test_it_is_overlooked_where_the_passage_is_unique(self) -> None:
        result = replace_passage("a\nb  \nc\t\nd\n", "b\nc\n", "x\n")
        assert (result.text, result.tolerant, result.changed) == ("a\nx\nd\n", True, ((2, 2),))

    def test_a_passage_without_its_line_end_leaves_it(self) -> None:
        assert replace_passage("a \nb \nc\n", "a\nb", "x\ny").text == "x\ny\nc\n"

    def test_not_where_two_passages_fit(self) -> None:
        with pytest.raises(ToolFailure, match=r"white space.*2 times, at lines 1, 3"):
            replace_passage("b \nx\nb\t\nx\n", "b\nx", "y")

    def test_indentation_is_never_overlooked(self) -> None:
        with pytest.raises(ToolFailure, match="line 6 differs in white space: the file has '        return"):
            replace_passage(MODULE, "def load(path):\n    with open(path) as file:\n    return file.read()\n", "")


class TestNearMisses:
    def test_a_slip_is_found_and_its_line_shown(self) -> None:
        with pytest.raises(ToolFailure) as caught:
            replace_passage(MODULE, "def save(path, txt):\n    with open(path, 'w') as file:\n", "")
        message = caught.value.message
        assert "lines 9-10:" in message
        assert "    9\tdef save(path, text):" in message
        assert "first difference in line 9: old has 'def save(path, txt):'" in message

    def test_nothing_alike_is_said_plainly(self) -> None:
        with pytest.raises(ToolFailure, match="nothing in it comes near"):
            replace_passage(MODULE, "class Unheard(Of):\n    pass\n", "")

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("\n".join(f"    value_{n} = compute(value_{n - 1}, {n})" for n in range(24_000)), id="lines"),
            pytest.param("value compute " * 75_000, id="one line"),
            pytest.param("value = compute\n" * 65_000, id="the same line"),
            pytest.param("\n" * 1_000_000, id="empty lines"),
        ],
    )
    def test_a_megabyte_is_searched_in_bounded_time(self, text: str) -> None:
        old = "\n".join(f"    value_{n} = computed(value_{n - 1}, {n})" for n in range(100, 140))
        started = time.process_time()
        with pytest.raises(ToolFailure):
            replace_passage(text, old, "")
        assert time.process_time() - started < 10

    def test_the_best_comes_first_and_none_overlap(self) -> None:
        rng = random.Random(7)
        lines = [f"item_{rng.randrange(50)} = {rng.random()}" for _ in range(500)]
        lines[300:300] = ["def total(items):", "    return sum(items)"]
        found = near_misses("\n".join(lines), "def totals(items):\n    return sum(items)")
        assert found[0].first == 301
        assert all(abs(one.first - other.first) >= 2 for one in found for other in found if one is not other)


texts = st.lists(st.sampled_from(["a", "b", "a ", "\tb", "", "a b", "\r", "aa"]), max_size=12).map("\n".join)


@given(text=texts, old=texts, new=texts, everywhere=st.booleans())
def test_an_edit_changes_the_passage_and_nothing_else(text: str, old: str, new: str, everywhere: bool) -> None:
    try:
        result = replace_passage(text, old, new, replace_all=everywhere)
    except ToolFailure:
        assert not old or old == new or text.count(old) != 1
        return
    if not result.tolerant:
        assert result.text == text.replace(old, new)
        assert result.count == text.count(old)
    else:
        assert old not in text
        stripped = [line.rstrip() for line in text.split("\n")]
        wanted = [line.rstrip() for line in old.removesuffix("\n").split("\n")]
        first = result.changed[0][0] - 1
        assert stripped[first : first + len(wanted)] == wanted
        before = "".join(line + "\n" for line in text.split("\n")[:first])
        after = "\n".join(text.split("\n")[first + len(wanted) :])
        assert result.text.startswith(before)
        assert result.text.endswith(after)


@given(
    lines=st.lists(st.text("ab", max_size=30), min_size=1, max_size=30),
    room=st.integers(0, 200),
    first=st.integers(1, 30),
)
def test_numbered_lines_fit_and_go_on_where_they_stopped(lines: list[str], room: int, first: int) -> None:
    first = min(first, len(lines))
    body, end = numbered(lines, first, len(lines), room=room)
    rows = body.split("\n")
    assert len(rows) == end - first + 1 >= 1
    assert len(body) + 1 <= room or end == first
    assert rows == [f"{number:5}\t{lines[number - 1]}" for number in range(first, end + 1)]


def test_regions_show_what_surrounds_a_change() -> None:
    lines = [f"line {number}" for number in range(1, 101)]
    assert regions(lines, [(10, 11)]).split("\n") == [f"{n:5}\tline {n}" for n in range(7, 15)]
    long = regions(lines, [(1, 100)]).split("\n")
    assert len(long) == 61
    assert long[30] == "  ... 40 lines ..."
    assert regions(["x" * 5000], [(1, 1)]).endswith("[... 3000 more characters in this line]")
    assert regions([], [(1, 1)]) == "[the file is empty]"


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("a.py", "def f(:\n", "line 1"),
        ("a.py", "x = 1\n", ""),
        ("a.json", "{,}", "line 1 column 2"),
        ("a.toml", "a = \n", "line 1"),
        ("a.txt", "def f(:", ""),
        ("a.json", "[" * 100_000, "recursion"),
        ("a.py", "-" * 100_000 + "1", "nested too deeply"),
        ("a.py", "x = (" * 200_000, ""),
        ("a.py", "x\0", "null bytes"),
    ],
)
def test_syntax_errors_are_named_and_bombs_are_harmless(path: str, content: str, said: str) -> None:
    found = syntax_error(path, content)
    assert said in found
    assert bool(said) == bool(found)
