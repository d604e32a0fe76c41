"""Environment runs: an agent that finds out what a repository's tests need where rules do not lead to it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.task import EnvironmentSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentProposal:
    """Set-up commands that run behind the detected ones, and a test command (empty: the detected one).

    `notes` are what its author learned, `source` names the run that found it. Untrusted: it is carried out where the
    repository's own build code is, and nowhere else.
    """

    setup: tuple[str, ...] = ()
    test_command: str = ""
    notes: str = ""
    source: str = ""

    def amending(self, spec: EnvironmentSpec) -> EnvironmentSpec:
        """A specification with what is proposed; the caller's own commands come first, its test command stands."""
        return replace(
            spec, setup=(*spec.setup, *self.setup), test_command=spec.test_command.strip() or self.test_command
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRun:
    """What an environment run came to.

    Attributes:
        agent_id: Its run in the log.
        answered: Whether it came to its end; otherwise a later execution tries again.
        proposal: What it proposes; None where that is nothing that could be tried.
        kept: Whether that is used: the tests of the untouched commit get on better with it.
        reason: Why it is kept or not, in words.
        before: The baseline without it, in a line.
        after: The baseline with it; empty where it was not tried.
        usage: What the run spent.
    """

    agent_id: str
    answered: bool = False
    proposal: EnvironmentProposal | None = None
    kept: bool = False
    reason: str = ""
    before: str = ""
    after: str = ""
    usage: Usage = field(default_factory=Usage)
