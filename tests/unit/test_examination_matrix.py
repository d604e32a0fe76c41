"""Cross-examination: what tests of other authors may and may not do to a verdict and to a place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain.candidate import (
    BY_OWN_RULES,
    CheckKind,
    CheckReport,
    CheckResult,
    ForeignTests,
    RankedCandidate,
    Verdict,
)
from swe_ai_fleet.domain.examination import STATEMENT, Conflict, Examination, Matrix
from swe_ai_fleet.domain.examination import TestSet as Tests
from swe_ai_fleet.domain.review import Critique
from swe_ai_fleet.domain.test_run import Crossing, ForeignFailure
from swe_ai_fleet.orchestrator.evidence import verdict_of
from swe_ai_fleet.orchestrator.ranking import rank
from tests.candidates import a_candidate
from tests.tables import table

# What a function gives for an input; 1 is what the task wants, 0 what the untouched source gives.
Values = Mapping[str, int]
BASE: Values = {"example": 0, "second": 0, "third": 0}
_UNTOUCHED: Values = {**BASE, "only": 0}
SOURCES: Mapping[str, Values] = {
    "right": {"example": 1, "second": 1, "third": 1},
    "half": {"example": 1, "second": 1, "third": 0},
    "reason": {"example": 1, "second": 2, "third": 1},
    "special": {"example": 1, "second": 0, "third": 0},
    "nothing": {"example": 0, "second": 0, "third": 0},
}


@dataclass(frozen=True, kw_only=True)
class Author:
    """A candidate: what its source gives, and tests, each of which demands values for some inputs."""

    name: str
    source: Values
    tests: Mapping[str, Values] = field(default_factory=dict[str, Values])
    existing: bool = False
    refuted: bool = False

    @property
    def meaningful(self) -> tuple[str, ...]:
        return tuple(
            name for name, test in self.tests.items() if passes(self.source, test) and not passes(_UNTOUCHED, test)
        )


def passes(source: Values, test: Values) -> bool:
    return all(source[case] == value for case, value in test.items())


def good(source: Values) -> dict[str, Values]:
    """A test for each input that a source gets right."""
    return {f"is_{case}": {case: 1} for case, value in source.items() if value == 1}


def wrong(source: Values) -> dict[str, Values]:
    """A test of the example that also demands whatever else the source gives, right or not."""
    return {"demands": dict(source)}


def author(kind: str, tests: str, name: str = "") -> Author:
    source = SOURCES[kind]
    bring = {"good": good(source), "wrong": wrong(source), "vacuous": {}}[tests]
    return Author(name=name or f"{kind}-{tests}", source=source, tests=bring)


def end(test: str, demanded: Values, source: Values) -> ForeignFailure | None:
    if passes(source, demanded):
        return None
    same = all(source[case] == _UNTOUCHED[case] for case in demanded)
    return ForeignFailure(test=test, message="assert", unchanged=same)


def crossings(by: str, tests: Mapping[str, Values], sources: Sequence[Author]) -> tuple[Crossing, ...]:
    """How tests end on each of some sources."""
    told: list[Crossing] = []
    for other in sources:
        ends = {f"{by}{test}": end(f"{by}{test}", demanded, other.source) for test, demanded in tests.items()}
        passed = tuple(test for test, failure in ends.items() if failure is None)
        failed = tuple(failure for failure in ends.values() if failure is not None)
        told.append(Crossing(candidate_id=other.name, passed=passed, failed=failed))
    return tuple(told)


def examined(pool: Sequence[Author], **probes: Values) -> Examination:
    """The matrix that running all of them makes, and probes of the statement."""
    sources = sorted((one for one in pool if not one.refuted), key=lambda one: one.name)
    sets = [
        Tests(
            candidates=(one.name,),
            tests=tuple(f"{one.name}::{test}" for test in one.meaningful),
            crossings=crossings(
                f"{one.name}::",
                {test: one.tests[test] for test in one.meaningful},
                [other for other in sources if other is not one],
            ),
        )
        for one in sources
        if one.meaningful
    ]
    whole = Examination(candidates=tuple(one.name for one in sources), sets=tuple(sets)).with_conflicts()
    statement = Tests(candidates=(STATEMENT,), tests=tuple(probes), crossings=crossings("", probes, sources))
    return replace(whole, sets=(*whole.sets, statement)) if probes else whole


def report(one: Author) -> CheckReport:
    own = tuple(f"{one.name}::{test}" for test in one.meaningful)
    shown = (*own, *(("tests/test_old.py::test_example",) if one.existing else ()))
    result = CheckResult(
        kind=CheckKind.DRY_RUN,
        name="tests",
        passed=not one.refuted,
        score=float(not one.refuted),
        message=f"{len(shown)} tests fail without the change",
        shown=() if one.refuted else shown,
        own=() if one.refuted else own,
    )
    verdict, reasons = verdict_of([result])
    return CheckReport(candidate_id=one.name, results=(result,), verdict=verdict, reasons=reasons)


def ranked(pool: Sequence[Author], critiques: Sequence[Critique] = ()) -> tuple[RankedCandidate, ...]:
    return rank([a_candidate(one.name) for one in pool], probed(pool), critiques=critiques)


WRONG_KINDS = ("half", "reason", "special", "nothing")
OTHERS = [
    *(author(kind, tests) for kind in WRONG_KINDS for tests in ("good", "vacuous")),
    *(author(kind, "wrong") for kind in ("half", "reason", "special")),
]
POOLS = [
    (author("right", "good"), *others)
    for size in (1, 2, 3, 4)
    for others in combinations(OTHERS, size)
    if len({one.name.partition("-")[0] for one in others}) == size
]


def words(pool: Sequence[Author]) -> str:
    return ", ".join(one.name for one in pool)


def test_good_tests_bring_the_right_one_first_and_leave_no_wrong_one_verified_in_any_pool() -> None:
    assert len(POOLS) > 150
    told = {words(pool): probed(pool) for pool in POOLS}
    lost = {words(pool): first for pool in POOLS if (first := ranked(pool)[0].candidate_id) != "right-good"}
    assert lost == {}
    # What its tests do: without them, most of these are won by a wrong one.
    before = [rank([a_candidate(one.name) for one in pool], {one.name: report(one) for one in pool}) for pool in POOLS]
    assert sum(ranking[0].candidate_id == "right-good" for ranking in before) < len(POOLS) / 3
    verified = {
        pool: [name for name, one in all_.items() if one.verdict is Verdict.VERIFIED] for pool, all_ in told.items()
    }
    assert {pool: names for pool, names in verified.items() if names not in ([], ["right-good"])} == {}
    # It stays so itself where nobody's tests demand what is wrong and others bring tests.
    proven = [
        words(pool)
        for pool in POOLS
        if any("-good" in one.name and one.meaningful for one in pool[1:]) and "wrong" not in words(pool)
    ]
    assert len(proven) > 50
    assert [pool for pool in proven if not verified[pool]] == []


def test_two_who_agree_are_not_moved_by_one_who_demands_something_else() -> None:
    pool = [author("right", "good", "a"), author("right", "good", "b"), author("reason", "wrong", "c")]
    told = probed(pool)
    assert [told[name].verdict for name in "abc"] == [Verdict.VERIFIED, Verdict.VERIFIED, Verdict.UNVERIFIED]
    assert told["c"].reasons[0] == "1 test of a, which b's change passes too, fails: a::is_second"
    assert [one.candidate_id for one in ranked(pool)][2] == "c"
    first = ranked(pool)[0]
    assert "passes the new tests of 1 of 2 other authors, fails 1 new test of c" in first.reason
    assert "ahead of b: " in first.reason and first.tests is not None and first.tests > 0.5


def test_two_who_contradict_each_other_are_both_unverified_and_told_as_a_conflict() -> None:
    pool = [author("right", "good", "a"), author("reason", "wrong", "b")]
    told = probed(pool)
    assert {one.verdict for one in told.values()} == {Verdict.UNVERIFIED}
    assert examined(pool).conflicts == (
        Conflict(candidate_id="b", test="a::is_second", other_id="a", other_test="b::demands"),
    )
    assert told["a"].reasons[0] == "1 test of b fails: b::demands"
    # Who agrees with neither is no part of it; where a third one passes a test, that is no open question.
    three = [*pool, author("right", "vacuous", "c")]
    assert examined(three).conflicts == ()


def test_what_existing_tests_verify_stays_verified_and_stands_behind() -> None:
    half = replace(author("half", "good", "a"), existing=True)
    pool = [half, replace(author("right", "good", "b"), existing=True)]
    told = probed(pool)
    assert (told["a"].verdict, told["a"].reasons) == (Verdict.VERIFIED, report(half).reasons)
    first, second = ranked(pool)
    assert (first.candidate_id, second.verdict) == ("b", Verdict.VERIFIED)
    assert "fails 1 new test of b" in second.reason and second.reason.endswith("behind b: new tests 0.50 against 0.78")


def test_a_test_and_a_source_of_two_authors_verify_what_has_no_test_of_its_own() -> None:
    pool = [author("right", "vacuous", "a"), author("half", "good", "b")]
    told = probed(pool)
    assert told["a"].verdict is Verdict.VERIFIED
    assert told["a"].reasons[0] == (
        "the new tests of b fail without the change and pass with it: b::is_example, b::is_second"
    )
    # Not one that has tests run by rules of its own, nor one that fails the word of somebody who knows no less.
    own_rules = CheckResult(kind=CheckKind.DRY_RUN, name="tests", passed=True, details={BY_OWN_RULES: "tests/x.py"})
    bent = replace(report(pool[0]), results=(own_rules,))
    assert Matrix(examined(pool)).judged("a", bent).verdict is Verdict.UNVERIFIED
    three = [author("half", "vacuous", "a"), author("half", "good", "b"), author("right", "good", "c")]
    assert probed(three)["a"].verdict is Verdict.UNVERIFIED


def test_a_test_that_tells_sources_apart_gains_nothing_where_others_speak_against_its_author() -> None:
    """Such as one that reads the source, or counts its files: it passes on its author's only."""
    cheat = Author(
        name="c", source={**SOURCES["special"], "only": 1}, tests={"is_example": {"example": 1}, "reads": {"only": 1}}
    )
    others = [
        replace(one, source={**one.source, "only": 2})
        for one in (author("right", "good", "a"), author("right", "good", "b"))
    ]
    sets = [one for one in examined([cheat, *others]).sets if one.name == "c"]
    assert sets[0].tests == ("c::is_example", "c::reads")
    matrix = Matrix(examined([cheat, *others]))
    told = {one.name: matrix.judged(one.name, report(one)) for one in (cheat, *others)}
    assert [told[name].verdict for name in "abc"] == [Verdict.VERIFIED, Verdict.VERIFIED, Verdict.UNVERIFIED]
    assert matrix.value("c") < matrix.value("a") == matrix.value("b")


@st.composite
def pools(draw: st.DrawFn) -> list[Author]:
    """Sources and tests of any kind, also such as demand what nobody gives."""
    values = st.fixed_dictionaries(dict.fromkeys(BASE, st.integers(0, 2)))
    demands = st.dictionaries(st.sampled_from(sorted(BASE)), st.integers(0, 2), min_size=1)
    return [
        Author(
            name=name,
            source=draw(values),
            tests=draw(st.dictionaries(st.sampled_from(["one", "two", "three"]), demands, max_size=3)),
            existing=draw(st.booleans()),
            refuted=draw(st.integers(0, 4)) == 0,
        )
        for name in "abcdef"[: draw(st.integers(1, 6))]
    ]


@settings(max_examples=40)
@given(pools(), st.floats(0, 1), st.randoms(use_true_random=False))
def test_neither_order_nor_names_decide_nor_do_tests_lift_what_is_refuted(pool: list[Author], score: float, random):
    shuffled = list(pool)
    random.shuffle(shuffled)
    matrix, told = examined(pool), probed(pool)
    jumbled = Matrix(replace(matrix, sets=tuple(random.sample(matrix.sets, len(matrix.sets)))))
    assert ranked(shuffled) == ranked(pool)
    new = {one.name: f"{index}" for index, one in enumerate(reversed(pool))}
    after = probed([replace(one, name=new[one.name]) for one in pool])
    for one in pool:
        assert jumbled.value(one.name) == Matrix(matrix).value(one.name)
        assert jumbled.judged(one.name, report(one)).verdict is told[one.name].verdict is after[new[one.name]].verdict
        known, renamed = told[one.name].foreign, after[new[one.name]].foreign
        assert (known and known.value) == (renamed and renamed.value)
        assert (told[one.name].verdict is Verdict.REFUTED) == one.refuted is not told[one.name].accepted
    accepted = [one.accepted for one in ranked(pool)]
    assert accepted == sorted(accepted, reverse=True)
    # Every value lies between none and all.
    for place in ranked(pool, [Critique(reviewer_id="p", candidate_id=one.name, round=1, score=score) for one in pool]):
        assert 0 <= place.score <= 1
        assert place.tests is None or 0 < place.tests < 1


def probed(pool: Sequence[Author], **probes: Values) -> dict[str, CheckReport]:
    """What the candidates are judged to be beside each other and by probes of the statement."""
    matrix = Matrix(examined(pool, **probes))
    return {one.name: matrix.judged(one.name, report(one)) for one in pool}


SECOND, THIRD, ERRS = {"second": 1}, {"third": 1}, {"example": 1, "second": 0}
"""Two good probes, and one that demands what only the special-cased source does."""


def test_two_probes_decide_and_one_alone_does_not() -> None:
    pool = [author("right", "vacuous"), author("special", "vacuous")]
    assert {one.verdict for one in probed(pool, a=SECOND).values()} == {Verdict.UNVERIFIED}
    told = probed(pool, a=SECOND, b=THIRD)
    assert [told[one.name].verdict for one in pool] == [Verdict.VERIFIED, Verdict.UNVERIFIED]
    assert told["right-vacuous"].reasons[0] == "probes of the statement fail without the change and pass with it: a, b"
    # Nor does one that errs make the second of two that verify.
    assert {one.verdict for one in probed(pool, wrong=ERRS, shared={"example": 1}).values()} == {Verdict.UNVERIFIED}
    # Its tests hold for the right source too: what tells them apart is a probe that errs as one of them does.
    pool = [author("right", "vacuous"), author("special", "good")]
    assert {one.verdict for one in probed(pool).values()} == {Verdict.VERIFIED}
    told = probed(pool, wrong=ERRS)
    assert {one.verdict for one in told.values()} == {Verdict.UNVERIFIED}
    said = "only one probe of the statement tells it from right-vacuous's change: wrong"
    assert told["special-good"].reasons[0] == said
    # Two of one mind are believed.
    told = probed(pool, a=SECOND, b=THIRD)
    assert [told[one.name].verdict for one in pool] == [Verdict.VERIFIED, Verdict.UNVERIFIED]
    assert told["special-good"].reasons[0].startswith("2 probes of the statement, which right-vacuous's change passes")


def test_good_probes_never_take_the_right_one_for_less_nor_a_wrong_one_for_more() -> None:
    for pool in POOLS:
        before, told = probed(pool), probed(pool, a=SECOND, b=THIRD)
        verified = [{name for name, one in each.items() if one.verdict is Verdict.VERIFIED} for each in (before, told)]
        assert verified[0] & {"right-good"} <= verified[1] <= {"right-good"}, words(pool)


@table(
    ("foreign", "words"),
    [
        ({}, "no other author's new tests cover it"),
        ({"asked": 2, "passed": 2}, "passes the new tests of 2 of 2 other authors"),
        ({"asked": 1, "passed": 1}, "passes the new tests of 1 of 1 other author"),
        (
            {"asked": 3, "failing": dict.fromkeys("bcd", 1)},
            "fails 1 new test of b, fails 1 new test of c, fails 1 new test of d",
        ),
        (
            {"asked": 5, "failing": dict.fromkeys("bcdef", 1)},
            "fails 1 new test of b, fails 1 new test of c, fails 1 new test of d, and those of 2 more",
        ),
        ({"asked": 2, "failing": {"b": 2, "c": 1}}, "fails 2 new tests of b, fails 1 new test of c"),
        (
            {"asked": 2, "passed": 1, "failing": {STATEMENT: 1}, "probes_passed": 1, "probes_asked": 2},
            "passes 1 of 2 probes of the statement, passes the new tests of 1 of 1 other author",
        ),
    ],
)
def test_what_tests_of_others_say_is_told_in_words(foreign: dict[str, object], words: str) -> None:
    told = replace(report(author("right", "good", "a")), foreign=ForeignTests(value=0.5, **foreign))
    reason = rank([a_candidate("a")], {"a": told})[0].reason
    assert f"; {words}; 1 changed lines" in reason
