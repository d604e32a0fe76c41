"""Who sits in a role's council, and how it works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swe_ai_fleet.domain.task import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class CouncilMember:
    """An agent of a council. With an `endpoint` somebody else runs it, behind `fleet.agent.v1.AgentService`."""

    agent_id: str
    model_profile: str = ""
    endpoint: str = ""
    max_concurrent_tasks: int = 1
    supported_tasks: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    registered_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Council:
    """A council as it is stored: its members, and what holds where a request does not say otherwise.

    `rounds` of peer review; 0: the fleet's default, none without `peer_review`.
    """

    council_id: str
    role: Role
    members: tuple[CouncilMember, ...]
    rounds: int = 0
    peer_review: bool = True
    model_profile: str = ""
    agent_type: str = ""
    custom_params: Mapping[str, str] = field(default_factory=dict[str, str])
