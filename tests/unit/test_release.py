"""Which versions of the fleet work together."""

from __future__ import annotations

from dataclasses import dataclass

from swe_ai_fleet.domain import release
from swe_ai_fleet.domain.release import Release, this_release
from tests.tables import table


@table(
    ("orchestrator", "host", "told"),
    [
        ("1.4.0+aa", "1.4.0+aa", ""),
        ("1.4.0+aa", "1.4.9+aa", ""),
        ("1.4.0+aa", "1.3.0+aa", "the host is 1.3.0+aa, the orchestrator 1.4.0+aa"),
        ("1.4.0+aa", "1.4.0+ab", "the host is 1.4.0+ab, the orchestrator 1.4.0+aa"),
        ("1.4.0+aa", "", "the host is older, the orchestrator 1.4.0+aa"),
    ],
)
def test_a_host_works_for_the_same_minor_version_with_the_same_wire_format(
    orchestrator: str, host: str, told: str
) -> None:
    assert Release.of(orchestrator).misfit(Release.of(host)) == told
    assert str(Release.of(host)) == host


@dataclass
class Inner:
    number: int


@dataclass
class Outer:
    inner: tuple[Inner, ...]


def test_the_wire_format_is_what_types_are_made_of() -> None:
    before = set(release._described((Outer,)))  # pyright: ignore[reportPrivateUsage]
    assert before == {"Outer: inner: tuple[Inner, ...]", "Inner: number: int"}
    told = "\n".join(sorted(release._described(release.ASSIGNMENT_TYPES.values())))  # pyright: ignore
    # A type that only another one's field names, and one that only a result has.
    assert "\nRepoRef: location: str" in told and "\nTestSummary: " in told and "\nRole: DEV, QA" in told
    this_release.cache_clear()
    assert len({str(this_release()), str(this_release.__wrapped__())}) == 1
