"""The lab of the selection, on a repository made by hand: pools are as the list says, and the figures are right."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from labs.selection.catalogue import PoolSpec, Probe, author_of, pools
from labs.selection.judging import Ranking
from labs.selection.making import Made, Pool, Unmakeable, Workshop
from labs.selection.probes import alone
from labs.selection.probing import ProbeEnd, Probing
from labs.selection.report import Row, counted, figures
from labs.zoo.judging import Fleet, open_judges
from swe_ai_fleet.testing.repositories import git, make_repository

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FILES = {
    "prices.py": '''"""Prices."""


def total(prices, count):
    if count <= 0:
        return 0
    return sum(prices) * count


def reduced(price, percent):
    if percent >= 100:
        return 0
    return price - price * percent / 100
''',
    "remarks.py": '"""Nothing is here yet."""\n',
    "test_prices.py": """from prices import total


def test_many():
    assert total([1, 2], 2) == 6


def test_none():
    assert total([1, 2], 0) == 0


def test_one():
    assert total([5], 1) == 5


def test_negative():
    assert total([5], -1) == 0


""",
    "test_reduced.py": """from prices import reduced


def test_half_price():
    assert reduced(10, 50) == 5


def test_for_free():
    assert reduced(10, 100) == 0


def test_no_reduction():
    assert reduced(10, 0) == 10


def test_more_than_free():
    assert reduced(10, 120) == 0
""",
}


def spec(seed: int, *authors: str, faults: int = 1, probes: tuple[Probe, ...] = ()) -> PoolSpec:
    return PoolSpec(project="prices", seed=seed, faults=faults, authors=tuple(map(author_of, authors)), probes=probes)


@pytest.fixture(scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with open_judges(tmp_path_factory.mktemp("selection")) as fleet:
        yield fleet


def workshop(fleet: Fleet, directory: Path) -> Workshop:
    repository = make_repository(directory / "repository", FILES)
    return Workshop(fleet=fleet, name="prices", runner="pytest", version="1", repository=repository, scratch=directory)


async def test_candidates_are_made_as_the_list_says(fleet: Fleet, tmp_path: Path) -> None:
    made = await workshop(fleet, tmp_path).pools(
        [
            spec(1, "right/slice", "reason/wrong", "nothing/vacuous"),
            spec(2, "half/all", "half/all", "right/none", faults=2),
            spec(3, "right/all", "special/slice"),
        ]
    )
    for pool in made:
        assert isinstance(pool, Pool), pool
        assert [one.author for one in pool.candidates] == list(pool.spec.authors)
        assert [one.right for one in pool.candidates] == [author.source == "right" for author in pool.spec.authors]
        assert not any(b"deleted file" in one.patch or b"\n-def test_" in one.patch for one in pool.candidates)
        assert len({one.patch for one in pool.candidates}) == len(pool.candidates)
        for name in pool.hidden:
            file, _, function = name.partition("::")
            assert f"def {function}(" not in git(tmp_path / "repository", "show", f"{pool.ref}:{file}")


async def test_a_pool_that_cannot_be_made_says_why(fleet: Fleet, tmp_path: Path) -> None:
    (pool,) = await workshop(fleet, tmp_path).pools([spec(1, "right/all", "nothing/none", faults=9)])
    assert isinstance(pool, Unmakeable)
    assert "no 9 faults" in str(pool)


async def test_good_tests_make_the_right_one_win_and_the_same_pool_comes_to_the_same(
    fleet: Fleet, tmp_path: Path
) -> None:
    shop = workshop(fleet, tmp_path)
    # Alone its own tests would be contested: the wrong one's tests, which pass on it, stand behind it.
    (pool,) = await shop.pools([spec(1, "right/all", "special/slice", "nothing/vacuous")])
    assert isinstance(pool, Pool), pool
    ranking = Ranking(before="", requests=tmp_path / "requests.jsonl", probing=Probing(home=tmp_path / "probing"))
    first, second = [await ranking.row(pool, fleet, shop.repository) for _ in range(2)]
    assert first.verdicts[pool.candidates[0].candidate_id] == "verified"
    assert [end.right / end.draws for end in first.now.values()] == [1, 1, 1]
    assert (first.now, first.unexamined, first.before) == (second.now, second.unexamined, second.before)
    assert len((tmp_path / "requests.jsonl").read_text().splitlines()) == 2
    assert json.loads((tmp_path / "requests.jsonl").read_text().splitlines()[0])["right"] == [
        pool.candidates[0].candidate_id
    ]


async def test_probes_are_worth_what_the_list_says(fleet: Fleet, tmp_path: Path) -> None:
    shop = workshop(fleet, tmp_path)
    (pool,) = await shop.pools([spec(1, "right/none", "reason/none", "nothing/none", probes=tuple(Probe))])
    assert isinstance(pool, Pool), pool
    right, reason, nothing = (made.candidate_id for made in pool.candidates)
    ranking = Ranking(before="", requests=tmp_path / "requests.jsonl", probing=Probing(home=tmp_path / "probing"))
    row = await ranking.row(pool, fleet, shop.repository)
    ends = {end.kind: end for end in row.probes}
    assert list(ends) == [Probe.GOOD, Probe.VACUOUS, Probe.LOOSE, Probe.TEXT, Probe.CHANGED], "five are run at most"
    assert [kind for kind, end in ends.items() if not end.telling] == [Probe.VACUOUS]
    assert right in ends[Probe.GOOD].passed and nothing in ends[Probe.GOOD].failed
    assert ends[Probe.LOOSE].passed == tuple(sorted({right, reason})) and ends[Probe.LOOSE].failed == (nothing,)
    assert ends[Probe.CHANGED].unsaid == tuple(sorted({right, reason, nothing}))
    assert [end.right / end.draws for end in row.now.values()] > [
        end.right / end.draws for end in row.without_probes.values()
    ]


def test_figures_count_draws() -> None:
    pool = Pool(
        spec=spec(1, "right/none", "nothing/none"),
        ref="pool-1",
        faults=(),
        hidden=(),
        candidates=(
            Made(candidate_id="a", author=author_of("right/none"), patch=b"a", right=True),
            Made(candidate_id="b", author=author_of("nothing/none"), patch=b"b", right=False),
        ),
    )
    ends = [(0.5, "a", "verified"), (0.5, "b", "verified"), (0.5, "b", "unverified"), (0.5, "", None)]
    draws = [(*end, 2) for end in (*ends, (0.65, "a", "unverified"), (0.8, "a", "unverified"))]
    ends = (ProbeEnd(kind=Probe.GOOD, telling=True, passed=("a",), failed=("b",)),)
    row = Row(
        spec=pool.spec, pool=pool, probes=ends, now=counted(draws, ["a"]), before=counted([(0.5, "b", None, 6)], ["a"])
    )
    found = figures([replace(row, before={})])
    assert (found["right_wins_50"], found["right_wins_65"], found["wrong_verified"]) == (0.25, 1.0, round(1 / 6, 4))
    assert (found["pools_without_good_tests"], found["opinions"]) == (1, 2.0)
    assert found["right_wins_50_before"] is None
    assert found["probes"]["good"] == {"made": 1, "telling": 1, "right that pass": 1, "wrong that fail": 1}
    assert found["right_wins_50_without_probes"] is None
    assert row.before[0.5].wrong_verified == 1, "what knows no verdicts delivers all alike"


def test_the_list_has_enough_of_everything() -> None:
    listed = pools()
    assert len(listed) >= 40
    assert len({pool.name for pool in listed}) == len(listed)
    assert sum(not pool.shown for pool in listed) >= len(listed) / 5
    sources = {author.source for pool in listed for author in pool.authors}
    tests = {author.tests for pool in listed for author in pool.authors}
    assert (len(sources), len(tests)) == (5, 5)
    probes = [probe for pool in listed for probe in pool.probes]
    assert 0.3 <= sum(not pool.probes for pool in listed) / len(listed) <= 0.36
    assert 0.45 <= probes.count(Probe.GOOD) / len(probes) <= 0.55
    assert set(probes) == set(Probe)


PARTS = """\
import math
import sys

import pytest

from prices import reduced, total

CASES = [(1, 1), (2, 2)]
OTHERS = [(3, 3)] * 100


class Shared:
    def test_it(self):
        assert total([self.price], 1) == math.floor(self.price)

    def test_another(self):
        assert False


class TestOne(Shared):
    price = 5


def test_cases(case):
    assert reduced(*OTHERS)


@pytest.mark.parametrize("case", CASES)
def test_more(case):
    assert total([case[0]], 1) == case[1]
"""


def test_one_test_is_taken_out_with_what_it_needs() -> None:
    more = alone(PARTS, "test_more")
    assert [line for line in more.splitlines() if "import" in line or "=" in line] == [
        "import pytest",
        "from prices import total",
        "CASES = [(1, 1), (2, 2)]",
        "    assert total([case[0]], 1) == case[1]",
    ]
    inherited = alone(PARTS, "test_it")
    assert "class TestOne(Shared)" in inherited and "test_another" not in inherited and "pytest" not in inherited
    assert alone(PARTS, "test_missing") == ""
