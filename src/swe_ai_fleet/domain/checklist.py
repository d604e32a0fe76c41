"""Checklists: what a task's statement asks for, with probes that show whether a source does it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.examination import PROBE_MARK, Examination
from swe_ai_fleet.domain.text import one_line

_NAME_CHARS = 160
_QUOTE_CHARS = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One thing that a statement asks for. All of it is untrusted text.

    Attributes:
        quote: Stands in the statement word for word.
        probe: A shell command that exits with 0 where a source does what is asked for; empty: none.
        met_before: Whether the untouched commit passes the probe; None: that is not known, or it changes.
        seen: What the probe printed there.
    """

    quote: str
    probe: str = ""
    met_before: bool | None = None
    seen: str = ""

    @property
    def name(self) -> str:
        """What its probe is called among tests."""
        return one_line(f'"{one_line(self.quote, _QUOTE_CHARS)}"{PROBE_MARK}{self.probe}`', _NAME_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklist:
    """What an agent made of a statement that saw nobody's change. `error` says why there is none."""

    requirements: tuple[Requirement, ...] = ()
    error: str = ""
    usage: Usage = field(default_factory=Usage)

    @property
    def probed(self) -> tuple[Requirement, ...]:
        """The requirements that have a probe."""
        return tuple(requirement for requirement in self.requirements if requirement.probe)

    @property
    def unshown(self) -> tuple[str, ...]:
        """The words of the requirements that no probe shows."""
        return tuple(requirement.quote for requirement in self.requirements if requirement not in self.telling)

    @property
    def telling(self) -> tuple[Requirement, ...]:
        """The requirements whose probe fails on the untouched commit."""
        return tuple(probe for probe in self.probed if probe.met_before is False)

    def with_outcomes(self, untouched: Examination) -> Checklist:
        """The same with what each probe came to on the untouched commit."""
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
