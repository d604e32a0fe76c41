"""Councils: the agents for a role, how they work together, and the endpoints of external agents.

An operator's rules say which endpoints are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swe_ai_fleet.domain.command import HostPattern, address_of
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import Role

HARNESS = "acp:"
"""Prefix of the endpoint of a harness: an agent program that the fleet itself runs in the workspace."""
_TLS = "https://"
_HINT = "such as agents.example.org:50060, or https://agents.example.org:443 for TLS"


def is_harness(endpoint: str) -> bool:
    """Whether an endpoint names a harness of this installation, `acp:NAME`."""
    return endpoint.startswith(HARNESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEndpoint:
    """One host and port. `host` is in lower case, an IPv6 address without brackets; `tls` is asked for by https://."""

    host: str
    port: int
    tls: bool = False

    @classmethod
    def parse(cls, text: str, *, field: str = "endpoint") -> AgentEndpoint:
        """An endpoint as people write it: `host:port` or `https://host:port`. Raises InvalidRequest."""
        tls = text.startswith(_TLS)
        host = HostPattern.parse(text.removeprefix(_TLS), field=field)
        if not host.exact or host.port is None:
            raise InvalidRequest(f"{text[:80]!r} is not an endpoint", field=field, hint=_HINT)
        return cls(host=host.name, port=host.port, tls=tls)

    @property
    def is_address(self) -> bool:
        """Whether the host is an IP address, not a name."""
        return address_of(self.host) is not None

    @property
    def authority(self) -> str:
        """Host and port, as a URL has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{_TLS if self.tls else ''}{self.authority}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRules:
    """Which endpoints may be registered and called. `patterns` are hosts with a port, see `HostPattern`.

    A pattern with `*` allows public addresses only; a named host may have any address, except those of the machine's
    own surroundings (link-local, metadata services), which must be named as addresses. Raises InvalidRequest for a text
    that is not a pattern.
    """

    patterns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for text in self.patterns:
            if HostPattern.parse(text, field="agent_endpoints").port is None:
                raise InvalidRequest(
                    f"{text[:80]!r} has no port", field="agent_endpoints", hint="such as agents.example.org:50060"
                )

    def check(self, text: str, *, field: str = "endpoint") -> AgentEndpoint:
        """The endpoint, if it may be called. Raises InvalidRequest."""
        endpoint = AgentEndpoint.parse(text, field=field)
        if not any(HostPattern.parse(each).covers(endpoint.host, endpoint.port) for each in self.patterns):
            allowed = (
                f"allowed are: {', '.join(self.patterns)}" if self.patterns else "the operator allows no endpoints"
            )
            raise InvalidRequest(
                f"agents at {endpoint} are not allowed here", field=field, hint=f"{allowed} (FLEET_AGENT_ENDPOINTS)"
            )
        return endpoint

    def names(self, endpoint: AgentEndpoint) -> bool:
        """Whether a pattern names exactly this host, so that it may have a private address."""
        patterns = [HostPattern.parse(each) for each in self.patterns]
        return any(each.exact and each.covers(endpoint.host, endpoint.port) for each in patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class CouncilMember:
    """An agent of a council.

    With an `endpoint` it is external, behind `fleet.agent.v1.AgentService`; the endpoint `acp:NAME` is a harness, which
    the fleet runs in the workspace.
    """

    agent_id: str
    model_profile: str = ""
    endpoint: str = ""
    max_concurrent_tasks: int = 1
    supported_tasks: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    registered_at: str = ""

    @property
    def elsewhere(self) -> bool:
        """Whether it is external, not run by this fleet."""
        return bool(self.endpoint) and not is_harness(self.endpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Council:
    """A council as it is stored: its members, and the defaults for requests.

    `rounds` of peer review; 0: the fleet's default, or none without `peer_review`.
    """

    council_id: str
    role: Role
    members: tuple[CouncilMember, ...]
    rounds: int = 0
    peer_review: bool = True
    model_profile: str = ""
    agent_type: str = ""
    custom_params: Mapping[str, str] = field(default_factory=dict[str, str])
