"""Which hosts somebody may reach, as patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address

from swe_ai_fleet.domain.errors import InvalidRequest

DEFAULT_PORTS = (80, 443)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = rf"(?:{_LABEL}\.)*{_LABEL}\.?"
_PATTERN = re.compile(
    rf"(?:\[(?P<literal>[0-9a-f:.]+)\]|(?P<name>\*|(?:\*\.)?{_NAME}))(?::(?P<port>[0-9]{{1,5}}))?"
    r"|(?P<bare>[0-9a-f]*:[0-9a-f:.]+)"
)


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """The IP address that a host is; None where it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPattern:
    """`example.org`, `*.example.org` (every name below it) or `*`; without a port, 80 and 443 are meant."""

    name: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str, *, field: str = "") -> HostPattern:
        """A pattern as people write it, optionally with `:port`. Raises InvalidRequest."""
        match = _PATTERN.fullmatch(text.strip().lower())
        port = int(match["port"]) if match and match["port"] else None
        if match is None or port == 0 or (port or 0) > 65535:
            raise InvalidRequest(
                f"{text[:80]!r} is not a host", field=field, hint="such as example.org or *.example.org:8443"
            )
        return cls(name=(match["literal"] or match["name"] or match["bare"]).rstrip("."), port=port)

    @property
    def exact(self) -> bool:
        """Whether it names one host."""
        return "*" not in self.name

    def covers(self, host: str, port: int) -> bool:
        """Whether a host (in lower case, without a dot at its end) at a port fits."""
        return port in (DEFAULT_PORTS if self.port is None else (self.port,)) and self._covers_name(host)

    def includes(self, other: HostPattern) -> bool:
        """Whether everything that fits `other` fits this one too."""
        ports_fit = self.port == other.port or (self.port is None and other.port in DEFAULT_PORTS)
        return ports_fit and (self.name == other.name or self._covers_name(other.name))

    def _covers_name(self, host: str) -> bool:
        if self.name == "*":
            return True
        if self.name.startswith("*."):
            return host.endswith(self.name[1:]) and len(host) > len(self.name) - 1
        return host == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkGrant:
    """The hosts that commands or requests of a workspace may reach.

    `hosts` are patterns (see `HostPattern`). They open public addresses only. `private_hosts` are exact names
    (optionally with `:port`) which may resolve to any address, for a package mirror on a private network; a name that
    strangers control has no place there. Raises InvalidRequest for what is no pattern.
    """

    hosts: tuple[str, ...] = ()
    private_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for text in (*self.hosts, *self.private_hosts):
            HostPattern.parse(text)

    def __bool__(self) -> bool:
        return bool(self.hosts or self.private_hosts)

    def covers(self, host: str, port: int) -> bool:
        """Whether a host may be reached at all."""
        return self.private(host, port) or any(HostPattern.parse(text).covers(host, port) for text in self.hosts)

    def private(self, host: str, port: int) -> bool:
        """Whether it may be reached at whatever address it has."""
        patterns = [HostPattern.parse(text) for text in self.private_hosts]
        return any(pattern.exact and pattern.covers(host, port) for pattern in patterns)

    def narrowed(self, hosts: tuple[str, ...], *, field: str) -> NetworkGrant:
        """What of this grant remains for a caller who asks for some hosts. Raises InvalidRequest for one beyond it."""
        granted = [HostPattern.parse(text) for text in (*self.hosts, *self.private_hosts)]
        for number, text in enumerate(hosts):
            wanted = HostPattern.parse(text, field=f"{field}[{number}]")
            if not any(pattern.includes(wanted) for pattern in granted):
                raise InvalidRequest(
                    f"the host {text[:80]!r} is not allowed here",
                    field=f"{field}[{number}]",
                    hint=f"allowed are: {', '.join((*self.hosts, *self.private_hosts)) or 'none'}",
                )
        private = tuple(text for text in self.private_hosts if any(_same(text, asked) for asked in hosts))
        return NetworkGrant(hosts=hosts, private_hosts=private)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRules:
    """What an installation grants: `default` to tasks that do not say, `ceiling` to those that ask."""

    default: NetworkGrant = field(default_factory=NetworkGrant)
    ceiling: NetworkGrant = field(default_factory=lambda: NetworkGrant(hosts=("*",)))

    def grant(self, hosts: tuple[str, ...] | None) -> NetworkGrant:
        """What a task gets that asks for `hosts` (None: it does not say). Raises InvalidRequest beyond the ceiling."""
        if hosts is None:
            return self.default
        return self.ceiling.narrowed(hosts, field="constraints.network.allowed_hosts")


def _same(pattern: str, other: str) -> bool:
    return HostPattern.parse(pattern) == HostPattern.parse(other)
