"""Words, ranking and records of the indexes of memories, without an index."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.adapters.memory_index.bm25 import bm25
from swe_ai_fleet.adapters.memory_index.checks import bounded, check_dimension, unit
from swe_ai_fleet.adapters.memory_index.record import dumped, loaded, storable
from swe_ai_fleet.adapters.memory_index.words import MAX_QUERY_WORDS, parts, query_terms, query_words, terms
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.memory import Memory, MemoryKind

TEXTS = st.text(max_size=200)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clearResolverCache", "clear Resolver Cache"),
        ("HTTPServer parseJSON utf8 snake_case_name", "HTTP Server parse JSON"),
        ("shard7 x2y", "x2 y"),
        ("東京都 a", "東京 京都"),
        ("plain words", ""),
    ],
)
def test_parts_of_words(text: str, expected: str) -> None:
    assert parts(text) == expected


def test_words_of_a_query_say_something() -> None:
    assert query_words("What is the colour of it?") == ("colour",)
    assert query_words("to be or not to be") == ("to", "be", "or", "not")
    assert query_words("Colour COLOUR, colour") == ("colour",)
    assert query_words("?! _ \0 \ud800") == ()
    assert len(query_words(" ".join(f"word{number}" for number in range(500)))) == MAX_QUERY_WORDS
    assert query_terms("classes policies linters status news") == ("classe", "policy", "linter", "status", "new")


@given(TEXTS)
def test_a_query_is_letters_and_digits(text: str) -> None:
    assert all(word.isalnum() for word in query_words(text))
    assert len(" ".join(query_words(text)).encode()) >= len(query_words(text))


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "Zs")), max_size=80))
def test_a_text_has_the_words_that_are_asked_for(text: str) -> None:
    assert set(query_terms(text)) <= set(terms(text))


def test_bm25_by_hand() -> None:
    documents = [["red", "fox"], ["red", "red", "dog", "runs"], ["blue"]]
    scores = bm25(["red", "fox"], documents)
    average = 7 / 3
    red, fox = math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)
    short, long = 1.2 * (0.25 + 0.75 * 2 / average), 1.2 * (0.25 + 0.75 * 4 / average)
    assert scores == pytest.approx([red * 2.2 / (1 + short) + fox * 2.2 / (1 + short), red * 4.4 / (2 + long), 0.0])
    assert bm25(["red"], documents, total=1_000)[0] > bm25(["red"], documents)[0]
    assert bm25(["red"], []) == []
    assert bm25(["red"], [[]]) == [0.0]


@given(st.lists(st.floats(-1e6, 1e6).filter(lambda number: number == 0 or abs(number) > 1e-6), min_size=1, max_size=20))
def test_a_direction_has_length_one(vector: list[float]) -> None:
    direction = unit(vector)
    assert direction == [] if not any(vector) else math.hypot(*direction) == pytest.approx(1.0)


def test_what_is_no_vector_is_refused() -> None:
    for wrong in ([math.nan], [math.inf, 1.0], [0.0] * 9_000):
        with pytest.raises(InvalidRequest):
            unit(wrong)
    assert unit([]) == []
    check_dimension("s", 0, [1.0])
    with pytest.raises(InvalidRequest, match="have 2 numbers, this one 1"):
        check_dimension("s", 2, [1.0])
    assert [bounded(limit) for limit in (-1, 0, 7, 10**9)] == [0, 0, 7, 10_000]


@given(TEXTS, st.dictionaries(st.text(st.characters()), st.text(st.characters())), st.sampled_from(MemoryKind))
def test_a_record_is_the_memory(text: str, metadata: dict[str, str], kind: MemoryKind) -> None:
    memory = Memory(namespace="fleet", text=text, metadata=metadata, kind=kind, source=text)
    assert dumped(memory).isascii()
    assert loaded(dumped(memory)) == memory
    for value in metadata.values():
        assert "\0" not in storable(value)
        assert storable(value).encode().decode() == storable(value)
