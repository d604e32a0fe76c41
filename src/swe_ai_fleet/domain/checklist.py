"""Checklists: the requirements of a task's statement, with probes that test whether a source meets them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.examination import PROBE_MARK, Examination
from swe_ai_fleet.domain.text import one_line

_NAME_CHARS = 160
_QUOTE_CHARS = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement of a statement. All of it is untrusted text.

    Attributes:
        quote: Its words in the statement, verbatim.
        probe: A shell command that exits with 0 where a source meets it; empty: there is none.
        met_before: Whether the untouched commit passes the probe; None: not known, or not always the same.
        seen: What the probe printed there.
    """

    quote: str
    probe: str = ""
    met_before: bool | None = None
    seen: str = ""

    @property
    def name(self) -> str:
        """The name of its probe among tests."""
        return one_line(f'"{one_line(self.quote, _QUOTE_CHARS)}"{PROBE_MARK}{self.probe}`', _NAME_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklist:
    """The requirements that an agent found in a statement, without seeing any change. `error`: why there are none."""

    requirements: tuple[Requirement, ...] = ()
    error: str = ""
    usage: Usage = field(default_factory=Usage)

    @property
    def probed(self) -> tuple[Requirement, ...]:
        """The requirements that have a probe."""
        return tuple(requirement for requirement in self.requirements if requirement.probe)

    @property
    def unshown(self) -> tuple[str, ...]:
        """The words of the requirements without a telling probe."""
        return tuple(requirement.quote for requirement in self.requirements if requirement not in self.telling)

    @property
    def telling(self) -> tuple[Requirement, ...]:
        """The requirements whose probe fails on the untouched commit."""
        return tuple(probe for probe in self.probed if probe.met_before is False)

    def with_outcomes(self, untouched: Examination) -> Checklist:
        """The checklist with the results of its probes on the untouched commit."""
        outcomes: dict[str, tuple[bool, str]] = {}
        for crossing in (crossing for tests in untouched.sets for crossing in tests.crossings):
            outcomes |= dict.fromkeys(crossing.passed, (True, ""))
            outcomes |= {failure.test: (False, failure.message) for failure in crossing.failed}
        requirements = [
            replace(requirement, met_before=outcomes[requirement.name][0], seen=outcomes[requirement.name][1])
            if requirement.name in outcomes
            else requirement
            for requirement in self.requirements
        ]
        return replace(self, requirements=tuple(requirements))
