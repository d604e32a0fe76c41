"""What a council and its agents must be like to be kept."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from swe_ai_fleet.domain.council import Council, CouncilMember
from swe_ai_fleet.domain.endpoint import EndpointRules
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import check_identifier
from swe_ai_fleet.orchestrator.councils import PARAMETERS, TEMPERATURE

OWN_AGENTS = "tools"
OUTSIDE_AGENTS = "external"
AGENT_TYPES = ("", OWN_AGENTS, OUTSIDE_AGENTS)
MAX_AGENT_ID_CHARS = 48
MAX_MEMBER_CHARS = 4_000
MAX_PARAMETER_CHARS = 8_000
MAX_ROUNDS = 16
MAX_TEMPERATURE = 2.0
MAX_CONCURRENT_TASKS = 1_000
# Runs of an agent are named after it: its revisions, reviews, votes, further seats.
_RESERVED = re.compile(r"planner|.*-reviews-.*|.*-(?:r[0-9]+|seat[0-9]+|judges)")


@dataclass(frozen=True, kw_only=True)
class CouncilRules:
    """What an installation has for councils.

    Attributes:
        profiles: The model profiles there are.
        endpoints: Where agents that others run may be.
        max_agents: The most agents one council may have.
    """

    profiles: Collection[str] = ()
    endpoints: EndpointRules = field(default_factory=EndpointRules)
    max_agents: int = 300

    def check(self, council: Council) -> None:
        """Raises InvalidRequest naming the field, `members[0].…` for those of members."""
        self.check_settings(council)
        if len(council.members) > self.max_agents:
            raise InvalidRequest(
                f"{len(council.members)} agents are too many for one council",
                field="members",
                hint=f"at most {self.max_agents}",
            )
        seen: set[str] = set()
        for number, member in enumerate(council.members):
            where = f"members[{number}]."
            self.check_member(council, member, where)
            if member.agent_id in seen:
                raise InvalidRequest(f"two agents are called {member.agent_id!r}", field=f"{where}agent_id")
            seen.add(member.agent_id)

    def check_settings(self, council: Council) -> None:
        """Everything but the members."""
        if council.agent_type not in AGENT_TYPES:
            raise InvalidRequest(
                f"unknown agent_type {council.agent_type[:64]!r}",
                field="agent_type",
                hint="leave it out, or one of tools (the fleet's own agents) and external (agents with an endpoint)",
            )
        if not 0 <= council.rounds <= MAX_ROUNDS:
            raise InvalidRequest(f"rounds is {council.rounds}", field="rounds", hint=f"between 0 and {MAX_ROUNDS}")
        for name in filter(None, (part.strip() for part in council.model_profile.split(","))):
            self._check_profile(name, "model_profile")
        _check_parameters(council.custom_params)

    def check_member(self, council: Council, member: CouncilMember, where: str = "") -> None:
        """One member of a council; `where` stands before the names of its fields."""
        check_identifier(member.agent_id, field=f"{where}agent_id")
        if len(member.agent_id) > MAX_AGENT_ID_CHARS:
            raise InvalidRequest(
                "the agent id is too long", field=f"{where}agent_id", hint=f"at most {MAX_AGENT_ID_CHARS} characters"
            )
        if _RESERVED.fullmatch(member.agent_id):
            raise InvalidRequest(
                f"{member.agent_id!r} is how the fleet names runs of its own",
                field=f"{where}agent_id",
                hint="another name; not planner, and without -r1, -seat2, -reviews- and -judges in it",
            )
        if member.model_profile:
            self._check_profile(member.model_profile, f"{where}model_profile")
        if not 1 <= member.max_concurrent_tasks <= MAX_CONCURRENT_TASKS:
            raise InvalidRequest(
                f"max_concurrent_tasks is {member.max_concurrent_tasks}",
                field=f"{where}max_concurrent_tasks",
                hint=f"between 1 and {MAX_CONCURRENT_TASKS}",
            )
        self._check_endpoint(council, member, where)
        words = (*member.supported_tasks, *member.languages, *member.metadata, *member.metadata.values())
        if (size := sum(map(len, words))) > MAX_MEMBER_CHARS:
            raise InvalidRequest(
                f"what is said of the agent has {size} characters",
                field=f"{where}metadata",
                hint=f"at most {MAX_MEMBER_CHARS}, supported_tasks and languages among them",
            )

    def _check_endpoint(self, council: Council, member: CouncilMember, where: str) -> None:
        name = f"{where}endpoint"
        if member.endpoint:
            self.endpoints.check(member.endpoint, field=name)
        if member.endpoint and council.agent_type == OWN_AGENTS:
            raise InvalidRequest(
                "this council has the fleet's own agents only", field=name, hint="its agent_type is tools"
            )
        if not member.endpoint and council.agent_type == OUTSIDE_AGENTS:
            raise InvalidRequest("the agents of this council have an endpoint each", field=name, hint="host:port")

    def _check_profile(self, name: str, field_name: str) -> None:
        if name not in self.profiles:
            known = ", ".join(sorted(self.profiles)) or "none is configured"
            raise InvalidRequest(f"there is no model profile {name[:64]!r}", field=field_name, hint=known)


def _check_parameters(given: Mapping[str, str]) -> None:
    for name, value in given.items():
        where = f"custom_params[{name[:64]}]"
        if name not in PARAMETERS:
            raise InvalidRequest(
                f"unknown parameter {name[:64]!r}", field=where, hint=f"one of {', '.join(PARAMETERS)}"
            )
        if len(value) > MAX_PARAMETER_CHARS:
            raise InvalidRequest(f"{name} is too long", field=where, hint=f"at most {MAX_PARAMETER_CHARS} characters")
        if name == TEMPERATURE and not _is_temperature(value):
            raise InvalidRequest(f"{value[:64]!r} is no temperature", field=where, hint=f"0 to {MAX_TEMPERATURE:g}")


def _is_temperature(text: str) -> bool:
    try:
        return 0 <= float(text) <= MAX_TEMPERATURE
    except ValueError:
        return False
