"""What earlier answers named, and what "that file" and "the second one" mean."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.function_calling.caller import MAX_ENTITIES, References

LIST = "Three places:\n1. Rome (see docs/rome.md)\n2. Oslo\n   in the north\n3) Bonn"


def test_files_and_the_last_numbered_list() -> None:
    found = References.of(["I changed `src/app.py`, (tests/test_app.py) and README.md.", "1. gone", LIST])
    assert found.files == ("src/app.py", "tests/test_app.py", "README.md", "docs/rome.md")
    assert [number for number, _ in found.items] == [1, 2, 3] and found.items[1] == (2, "Oslo")
    assert "- file: src/app.py" in found.section() and "- item 2: Oslo" in found.section()
    for text in ("", "e.g. this, i.e. that", "https://a.test/x.html", "example.com", "3.14 1.2.3"):
        assert (References.of([text]), References.of([text]).section()) == (References(), ""), text


@given(st.lists(st.text()))
def test_any_text_is_read(texts: list[str]) -> None:
    found = References.of(texts)
    assert len(found.files) <= MAX_ENTITIES
    assert found.resolve("\n".join(texts)) is not None


TWO = "a.py, b.py"
MEANINGS: tuple[tuple[list[str], str, list[tuple[str, str]]], ...] = (
    ([LIST], "Tell me about the second one.", [("the second one", "Oslo")]),
    ([LIST], "Take the 3rd", [("the 3rd", "Bonn")]), ([LIST], "Show item 2", [("item 2", "Oslo")]),
    ([LIST], "What about #3?", [("#3", "Bonn")]), ([LIST], "And the last entry?", [("the last entry", "Bonn")]),
    ([LIST], "Open THAT FILE", [("THAT FILE", "docs/rome.md")]),
    # Several in their order.
    ([LIST], "Compare the third one and the first one",
     [("the third one", "Bonn"), ("the first one", "Rome (see docs/rome.md)")]),
    # Files are counted where there is no list.
    ([TWO], "Open the second one", [("the second one", "b.py")]),
    ([TWO, LIST], "Open the second file", [("the second file", "b.py")]),
    # What is ambiguous or means nothing is left alone.
    (["a.py and b.py"], "Open that file", []), ([LIST], "Do that one", []), ([LIST], "the fifth one, item 17", []),
    ([LIST], "the first time I saw it", []), ([], "that file, the second one, #1", []),
)  # fmt: skip


def test_ordinals_numbers_and_that() -> None:
    for texts, request, meanings in MEANINGS:
        found = References.of(texts).resolve(request)
        assert [(one.phrase, one.meaning) for one in found] == meanings, request
