"""What is recalled, in which order, and when nothing is."""

import math

from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.memory import Memory
from swe_ai_fleet.extensions.knowledge.ranking import CANDIDATES, Match, fused

QUESTION = "Which command runs the integration tests?"
ANSWER = "Integration tests run with `make test-all`."


def match(text: str, score: float) -> Match:
    return Match(memory=Memory(namespace="fleet", text=text), score=score)


def texts(by_words: list[Match], by_meaning: list[Match], query: str = QUESTION, limit: int = 10) -> list[str]:
    return [one.memory.text for one in fused(by_words, by_meaning, query=query, limit=limit)]


def test_what_both_ways_find_comes_first() -> None:
    by_words = [match(ANSWER, 7.0), match("Tests of the parser are old.", 6.0)]
    by_meaning = [match("Run everything before a release.", 0.5), match(ANSWER, 0.5)]
    found = fused(by_words, by_meaning, query=QUESTION, limit=3)
    assert [one.memory.text for one in found][:2] == [ANSWER, "Run everything before a release."]
    assert [one.found_by for one in found][:2] == ["words, meaning", "meaning"]


def test_an_unrelated_question_recalls_nothing() -> None:
    by_words = [match("The build runs in a container.", 3.0), match("Tests of the parser are slow.", 2.5)]
    by_meaning = [match("The build runs in a container.", 0.3), match("My favourite colour is blue.", 0.1)]
    assert fused(by_words, by_meaning, query="Who runs the bakery in the old town?", limit=3) == ()
    assert fused(by_words, [], query="Who runs the bakery in the old town?", limit=3) == ()


def test_a_small_store_is_searched_by_words_although_its_scores_say_nothing() -> None:
    """BM25 gives a word next to no weight that stands in every memory, as all words do in a store of one."""
    assert texts([match("The user's favourite colour is blue.", 1e-6)], [], "What is my favourite colour?") == [
        "The user's favourite colour is blue."
    ]


def test_a_long_task_recalls_the_short_note_that_it_holds() -> None:
    task = (
        "Add a function that reads the configuration from a TOML file, cover it with tests, keep the linter quiet, "
        "run the integration tests with make before you commit, and describe the change in the changelog. " * 3
    )
    assert texts([match(ANSWER, 7.0), match("The changelog lives in docs.", 2.0)], [], task) == [ANSWER]


def test_exact_words_win_where_the_meaning_is_the_same() -> None:
    by_meaning = [match("Set retry_limit for the client.", 0.6), match("Set retry_count for the client.", 0.6)]
    by_words = [match("Set retry_count for the client.", 5.0), match("Set retry_limit for the client.", 2.0)]
    assert texts(by_words, by_meaning, "what does retry_count do?")[0] == "Set retry_count for the client."


def test_what_has_no_vector_is_found_by_its_words() -> None:
    assert texts([match(ANSWER, 7.0)], [match("My favourite colour is blue.", 0.1)]) == [ANSWER]
    # But what is far from the nearest is not recalled for half of its words.
    far = [match(f"{number} is a number", 0.05) for number in range(CANDIDATES)]
    assert texts([match("Commands of the integration layer", 7.0)], far) == []
    for query in ("", "   ", "?!", "\ud83d"):
        assert texts([match(ANSWER, 1.0)], [match(ANSWER, 0.9)], query) == []


TEXTS = st.text(alphabet=st.sampled_from("abc XYZ_é测试\ud83d"), max_size=30)
COSINES = st.lists(st.tuples(TEXTS, st.floats(-1, 1)), max_size=12)
FITNESS = st.lists(st.tuples(TEXTS, st.floats(-5, 30)), max_size=12)


@given(FITNESS, COSINES, TEXTS, st.integers(-1, 20))
def test_scores_are_shares_and_fall(
    words: list[tuple[str, float]], meaning: list[tuple[str, float]], query: str, limit: int
) -> None:
    by_words = sorted((match(*one) for one in words), key=lambda one: -one.score)
    by_meaning = sorted((match(*one) for one in meaning), key=lambda one: -one.score)
    found = fused(by_words, by_meaning, query=query, limit=limit)
    scores = [one.score for one in found]
    assert len(found) <= max(limit, 0)
    assert all(0.0 <= score <= 1.0 for score in scores)
    assert scores == sorted(scores, reverse=True)
    assert len({one.memory.memory_id for one in found}) == len(found)
    assert {one.found_by for one in found} <= {"words", "meaning", "words, meaning"}
    assert found == fused(by_words, by_meaning, query=query, limit=100)[: max(limit, 0)]


@given(st.floats(-1, 1), st.floats(0, 1))
def test_a_nearer_memory_never_ranks_lower(cosine: float, more: float) -> None:
    near = min(1.0, cosine + more)
    found = texts([], [match("one", near), match("other", cosine)], "alpha")
    assert found in (["one", "other"], ["one"], []) or math.isclose(near, cosine, abs_tol=1e-9)
