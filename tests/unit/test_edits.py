"""Replacing passages: exact, unique, and helpful where it cannot."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.tools import FileTool

MODULE = """\
import os


def load(path):
    with open(path) as file:
        return file.read()


def save(path, text):
    with open(path, "w") as file:
        file.write(text)
"""
SLIP = "def save(path, txt):\n    with open(path, 'w') as file:\n"
LOAD = "def load(path):\n    with open(path) as file:\n"


async def edited(text: str, old: str, new: str, replace_all: bool = False) -> tuple[str, ToolResult]:
    """A file's text after one edit, and what the tool said."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "a.txt")
        path.write_bytes(text.encode())
        result = await FileTool(name).edit_file("a.txt", old, new, replace_all)
        after = path.read_bytes().decode()
        assert result.success or after == text
        return after, result


@pytest.mark.parametrize(
    ("text", "old", "new", "after"),
    [
        (MODULE, "return file.read()\n", "return file\n", MODULE.replace("file.read()", "file")),
        ("a\nb\nc\n", "b\n", "", "a\nc\n"),
        # White space at the ends of lines is overlooked where the passage is unique, in the file and in what was asked.
        ("a\nb  \nc\t\nd\n", "b\nc\n", "x\n", "a\nx\nd\n"),
        ("a\nb\nc\n", "b   \nc", "x", "a\nx\n"),
        ("a \nb \nc\n", "a\nb", "x\ny", "x\ny\nc\n"),
        ("a\nb\r\nc\r\nd\n", "b\nc\n", "x\ny\n", "a\nx\r\ny\r\nd\n"),
    ],
)
async def test_a_passage_is_replaced_and_nothing_else(text: str, old: str, new: str, after: str) -> None:
    found, result = await edited(text, old, new)
    assert (found, result.metadata["count"]) == (after, 1)


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (MODULE, "    with open(path", "x", "occurs 2 times, at lines 5, 10; add lines"),
        (MODULE, "", "x", "empty"),
        (MODULE, "import os", "import os", "nothing would change"),
        ("b \nx\nb\t\nx\n", "b\nx", "y", "2 times, at lines 1, 3"),
        # Indentation is never overlooked.
        (MODULE, f"{LOAD}    return file.read()\n", "", "line 6 differs in white space: the file has '        return"),
        (MODULE, "class Unheard(Of):\n    pass\n", "", "nothing in it comes near"),
        (MODULE, "}}\n);", "", "does not occur"),
        (MODULE, SLIP, "", "lines 9-10:\n    9\tdef save(path, text):"),
        (MODULE, SLIP, "", "first difference in line 9: old has 'def save(path, txt):'"),
    ],
)  # fmt: skip
async def test_what_cannot_be_replaced_says_what_would_work(text: str, old: str, new: str, said: str) -> None:
    _, result = await edited(text, old, new)
    assert said in result.error


async def test_every_occurrence_and_what_is_shown_of_a_change() -> None:
    after, result = await edited(MODULE, "(path", "(\n    path", replace_all=True)
    assert (after, result.metadata["count"]) == (MODULE.replace("(path", "(\n    path"), 4)
    lines = "".join(f"line {number}\n" for number in range(1, 101))
    _, result = await edited(lines, "line 10\n", "line X\n")
    shown = [f"{n:5}\tline {'X' if n == 10 else n}" for n in range(7, 14)]
    assert result.content.split("\n")[1:] == shown
    _, result = await edited(lines, lines, lines.replace("line", "row"))
    assert "  ... 40 lines ..." in result.content
    assert len(result.content.split("\n")) == 62
    _, result = await edited("a\n", "a", "x" * 5000)
    assert result.content.endswith("[... 3000 more characters in this line]")


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"    value_{n} = compute(value_{n - 1}, {n})" for n in range(24_000)), "value compute " * 75_000,
        "value = compute\n" * 65_000, "\n" * 1_000_000,
    ],
    ids=["lines", "one line", "the same line", "empty lines"],
)  # fmt: skip
async def test_a_megabyte_is_searched_in_bounded_time(text: str) -> None:
    old = "\n".join(f"    value_{n} = computed(value_{n - 1}, {n})" for n in range(100, 140))
    started = time.process_time()
    assert not (await edited(text, old, ""))[1].success
    assert time.process_time() - started < 10


texts = st.lists(st.sampled_from(["a", "b", "a ", "\tb", "", "a b", "aa"]), max_size=12).map("\n".join)


@given(text=texts, old=texts, new=texts, everywhere=st.booleans())
async def test_an_edit_changes_the_passage_and_nothing_else(text: str, old: str, new: str, everywhere: bool) -> None:
    after, result = await edited(text, old, new, everywhere)
    if not result.success:
        assert not old or old == new or text.count(old) != 1
    elif old in text:
        assert (after, result.metadata["count"]) == (text.replace(old, new), text.count(old))
    else:
        # Found without the white space at the ends of lines: what stands before and behind is left alone.
        stripped = [line.rstrip() for line in text.split("\n")]
        wanted = [line.rstrip() for line in old.removesuffix("\n").split("\n")]
        first = next(n for n in range(len(stripped)) if stripped[n : n + len(wanted)] == wanted)
        assert after.startswith("".join(line + "\n" for line in text.split("\n")[:first]))
        assert after.endswith("\n".join(text.split("\n")[first + len(wanted) :]))


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("a.py", "def f(:\n", "line 1"), ("a.py", "x = 1\n", ""), ("a.json", "{,}", "line 1 column 2"),
        ("a.toml", "a = \n", "line 1"), ("a.txt", "def f(:", ""), ("a.json", "[" * 100_000, "recursion"),
        ("a.py", "-" * 100_000 + "1", "nested too deeply"), ("a.py", "x = (" * 200_000, ""),
    ],
)  # fmt: skip
async def test_syntax_errors_are_named_and_bombs_are_harmless(tmp_path: Path, path: str, content: str, said: str):
    result = await FileTool(tmp_path).write_file(path, content)
    assert said in result.content
    assert (result.success, "does not parse" in result.content) == (True, bool(said))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return file.read()", "return file.read("), ("def save", "@cached\n\ndef save"),
        ("def save", "x = 1\ndef save"), ("import os", 'import os\n"""'), ("        file.write(text)\n", ""),
        ("def load(path):\n", ""), ("def load", "class Loader\ndef load"),
    ],
)  # fmt: skip
async def test_looking_only_around_a_change_sees_what_the_whole_file_shows(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "a.py").write_text(MODULE)
    edit = await FileTool(tmp_path).edit_file("a.py", old, new)
    whole = await FileTool(tmp_path).write_file("b.py", (tmp_path / "a.py").read_text())
    assert edit.metadata["syntax_error"] == whole.metadata["syntax_error"]
