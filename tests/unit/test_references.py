"""What earlier answers named, and what "that file" and "the second one" mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.function_calling.references import MAX_ENTITIES, References

LIST = "Three places:\n1. Rome (see docs/rome.md)\n2. Oslo\n   in the north\n3) Bonn"


def meanings(texts: list[str], request: str) -> list[tuple[str, str]]:
    return [(found.phrase, found.meaning) for found in References.of(texts).resolve(request)]


class TestEntities:
    def test_files_and_the_last_numbered_list(self) -> None:
        found = References.of(["I changed `src/app.py`, (tests/test_app.py) and README.md.", LIST])
        assert found.files == ("src/app.py", "tests/test_app.py", "README.md", "docs/rome.md")
        assert [number for number, _ in found.items] == [1, 2, 3]
        assert found.items[1] == (2, "Oslo")
        assert "- file: src/app.py" in found.section()
        assert "- item 2: Oslo" in found.section()

    @pytest.mark.parametrize("text", ["", "e.g. this, i.e. that", "https://a.test/x.html", "example.com", "3.14 1.2.3"])
    def test_what_names_nothing(self, text: str) -> None:
        assert References.of([text]) == References()
        assert References.of([text]).section() == ""

    def test_a_new_list_replaces_the_old_one(self) -> None:
        assert References.of(["1. a\n2. b", "1. c"]).items == ((1, "c"),)

    @given(st.lists(st.text()))
    def test_any_text_is_read(self, texts: list[str]) -> None:
        found = References.of(texts)
        assert len(found.files) <= MAX_ENTITIES
        assert found.resolve("\n".join(texts)) is not None


class TestResolving:
    @pytest.mark.parametrize(
        ("request_", "meaning"),
        [
            ("Tell me about the second one.", ("the second one", "Oslo")),
            ("Take the 3rd", ("the 3rd", "Bonn")),
            ("Show item 2", ("item 2", "Oslo")),
            ("What about #3?", ("#3", "Bonn")),
            ("And the last entry?", ("the last entry", "Bonn")),
            ("Open THAT FILE", ("THAT FILE", "docs/rome.md")),
        ],
    )
    def test_ordinals_numbers_and_that(self, request_: str, meaning: tuple[str, str]) -> None:
        assert meanings([LIST], request_) == [meaning]

    def test_several_in_their_order(self) -> None:
        assert meanings([LIST], "Compare the third one and the first one") == [
            ("the third one", "Bonn"),
            ("the first one", "Rome (see docs/rome.md)"),
        ]

    @pytest.mark.parametrize(
        ("texts", "request_"),
        [
            (["a.py and b.py"], "Open that file"), ([LIST], "Do that one"), ([LIST], "the fifth one, item 17"),
            ([LIST], "the first time I saw it"), ([], "that file, the second one, #1"),
        ],
    )  # fmt: skip
    def test_what_is_ambiguous_or_means_nothing_is_left_alone(self, texts: list[str], request_: str) -> None:
        assert meanings(texts, request_) == []

    def test_files_are_counted_where_there_is_no_list(self) -> None:
        assert meanings(["a.py, b.py"], "Open the second one") == [("the second one", "b.py")]
        assert meanings(["a.py, b.py", LIST], "Open the second file") == [("the second file", "b.py")]
