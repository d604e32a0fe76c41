"""Agents that somebody else runs, as the fleet sees them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.bundle import RepositoryBundle
from swe_ai_fleet.domain.errand import Assignment
from swe_ai_fleet.domain.errors import FleetError


class AgentFault(FleetError):
    """An agent that somebody else runs cannot be reached, refuses, or answers what is no answer."""


class AgentBusy(AgentFault):
    """It takes no more tasks now, and may later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handout:
    """What an outside agent is given. A `revised_patch` goes with an assignment that has a revision."""

    assignment: Assignment
    repository: RepositoryBundle
    revised_patch: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What an outside agent says that it does: untrusted text, of any length."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedIn:
    """What an outside agent leaves; all of it untrusted, its own count of what it spent too."""

    patch: bytes
    summary: str = ""
    usage: Usage = field(default_factory=Usage)


class OutsideAgent(Protocol):
    """The way to agents that somebody else runs."""

    async def describe(self, endpoint: str) -> str:
        """The name of the agent that answers there. Raises AgentFault."""
        ...

    def solve(self, endpoint: str, handout: Handout) -> AsyncGenerator[Said | HandedIn, None]:
        """What the agent says, and last what it hands in. Closing the generator cancels its work.

        Raises AgentFault, AgentBusy.
        """
        ...
