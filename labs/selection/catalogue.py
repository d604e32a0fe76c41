"""The list of pools, `pools.toml`: which project, how many faults, and which candidates with which tests."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

LIST = Path(__file__).with_name("pools.toml")


class Source(StrEnum):
    """What a candidate does about the faults."""

    RIGHT = "right"
    HALF = "half"
    """One of two faults is put right."""
    REASON = "reason"
    """The faulty place is changed into something else that is wrong too, or what it raises is caught."""
    SPECIAL = "special"
    """Right for the callers that half of the hidden tests are."""
    NOTHING = "nothing"
    """A remark in another file."""


class Tests(StrEnum):
    """What tests a candidate brings."""

    __test__ = False

    ALL = "all"
    """Every hidden test that its own source passes."""
    SLICE = "slice"
    """Half of those."""
    VACUOUS = "vacuous"
    """A test that passes whatever the source does."""
    WRONG = "wrong"
    """A test that demands a behaviour which is wrong, and passes on its own source only."""
    NONE = "none"

    @property
    def good(self) -> bool:
        return self in (Tests.ALL, Tests.SLICE)


class Probe(StrEnum):
    """What a probe of the statement is worth."""

    GOOD = "good"
    """One of the hidden tests, alone."""
    VACUOUS = "vacuous"
    """Passes on the untouched commit: the module can be loaded."""
    LOOSE = "loose"
    """A hidden test that passes too where it fails in another way than on the untouched commit."""
    TEXT = "text"
    """The faulty line is gone from its file."""
    CHANGED = "changed"
    """Something in the repository has changed."""
    WRONG = "wrong"
    """One of the hidden tests passes and another one fails, as with a candidate that errs where there is such a one."""

    @property
    def weak(self) -> bool:
        """Whether it passes on changes that are wrong, and fails on the untouched commit."""
        return self in (Probe.LOOSE, Probe.TEXT, Probe.CHANGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """One candidate as the list asks for it: `reason/slice`."""

    source: Source
    tests: Tests

    def __str__(self) -> str:
        return f"{self.source}/{self.tests}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """One pool as the list asks for it.

    Attributes:
        project: A project of the zoo.
        seed: Decides everything that is left open: faults, slices, the candidates' ids.
        faults: One or two.
        probes: The probes that an agent makes of the statement; without any nobody is asked.
    """

    project: str
    seed: int
    faults: int
    authors: tuple[Author, ...]
    probes: tuple[Probe, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.project}-{self.seed}"

    @property
    def shown(self) -> bool:
        """Whether any candidate brings a good test; where none does, *unverified* is the right answer."""
        return any(author.tests.good for author in self.authors)


def pools(only: Sequence[str] = (), path: Path = LIST) -> tuple[PoolSpec, ...]:
    """The list, or the pools of the projects that are named. Raises LookupError for a name that it does not have."""
    rows = tomllib.loads(path.read_text())["pool"]
    found = tuple(
        PoolSpec(
            project=row["project"],
            seed=row["seed"],
            faults=row.get("faults", 1),
            authors=tuple(author_of(text) for text in row["candidates"]),
            probes=tuple(map(Probe, row.get("probes", ()))),
        )
        for row in rows
    )
    if unknown := set(only) - {pool.project for pool in found} - {pool.name for pool in found}:
        raise LookupError(f"{path.name} has no pool of {', '.join(sorted(unknown))}")
    return tuple(pool for pool in found if not only or pool.project in only or pool.name in only)


def author_of(text: str) -> Author:
    source, _, tests = text.partition("/")
    return Author(source=Source(source), tests=Tests(tests))
