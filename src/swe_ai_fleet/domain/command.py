"""Commands: a process to run in a workspace, its owner, the variables that callers may set, and its result.

Checks are commands that decide about a candidate; an MCP server of a task may be a command, too. Patterns say which
hosts they may reach.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address

from swe_ai_fleet.domain.errors import InvalidRequest

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# With these a loader or an interpreter runs other code before the program itself.
_START_HOOKS = frozenset(
    {
        "BASH_ENV", "ENV", "GCONV_PATH", "GLIBC_TUNABLES", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "NODE_OPTIONS",
        "PERL5DB", "PERL5OPT", "PYTHONHOME", "PYTHONSTARTUP", "RUBYOPT", "_JAVA_OPTIONS",
    }
)  # fmt: skip
_LOADER = "LD_"
_LIBRARIES = "LD_LIBRARY_PATH"
DEFAULT_OUTPUT_LIMIT = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The tenant and the execution that a command runs for; both empty where they are not known."""

    tenant: str = ""
    execution_id: str = ""


NOBODY = Owner()


def check_variables(variables: Mapping[str, str], *, field: str) -> None:
    """Refuse invalid names, and those that loaders and interpreters obey at start. Raises InvalidRequest.

    `field` is the caller's name of the mapping.
    """
    for name, value in variables.items():
        where = f"{field}[{name[:64]}]"
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"{name[:64]!r} is not a valid variable name", field=where, hint="letters, digits and _"
            )
        if "\0" in value:
            raise InvalidRequest(
                "the value contains a NUL byte", field=where, hint="an environment variable cannot hold a NUL byte"
            )
        if name in _START_HOOKS or (name.startswith(_LOADER) and name != _LIBRARIES):
            raise InvalidRequest(
                f"{name} could make programs run other code at start",
                field=where,
                hint=f"set it in the command that needs it: {name}=... COMMAND",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """An argv to run in the sandbox of a workspace, standard input closed.

    `cwd` is relative to the workspace. `timeout_seconds` counts from the moment a CPU slot is granted;
    `idle_timeout_seconds` is the longest silence allowed on both pipes. Of each pipe at most `output_limit` bytes from
    the head and as many from the tail are kept. `light` commands (a git plumbing call) take no CPU slot.
    """

    argv: tuple[str, ...]
    cwd: str = "."
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_seconds: float = 300.0
    idle_timeout_seconds: float | None = None
    output_limit: int = DEFAULT_OUTPUT_LIMIT
    merge_stderr: bool = False
    light: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One pipe's bytes: the head, the tail, and how many there were in all."""

    head: bytes = b""
    tail: bytes = b""
    total: int = 0

    @property
    def elided(self) -> int:
        return self.total - len(self.head) - len(self.tail)

    def text(self) -> str:
        """The output as text, with a note in place of the elided bytes; invalid UTF-8 becomes U+FFFD.

        It is cut at a line end, where one is near, and never within a character.
        """
        if not self.elided:
            return (self.head + self.tail).decode("utf-8", "replace")
        head, tail = self.head[: _whole_lines(self.head)], self.tail[_line_start(self.tail) :]
        line_end = "" if head.endswith(b"\n") or not head else "\n"
        gap = f"{line_end}[... {self.total - len(head) - len(tail)} bytes left out ...]\n"
        return head.decode("utf-8", "replace") + gap + tail.decode("utf-8", "replace")


def _whole_lines(head: bytes) -> int:
    """Where to end a head that was cut: after its last line end if that is in its last quarter."""
    line_end = head.rfind(b"\n") + 1
    if line_end and line_end >= len(head) * 3 // 4:
        return line_end
    for back in range(1, min(4, len(head) + 1)):
        byte = head[-back]
        if byte >= 0xC0:
            width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(head) - back if width > back else len(head)
        if byte < 0x80:
            break
    return len(head)


def _line_start(tail: bytes) -> int:
    """Where to begin a tail that was cut: after its first line end if that is in its first quarter."""
    line_end = tail.find(b"\n") + 1
    if line_end and line_end <= len(tail) // 4:
        return line_end
    return next((i for i, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command ended. `exit_code` is 128 + the signal's number where a signal ended it, as a shell says it."""

    exit_code: int
    stdout: Output
    stderr: Output
    duration_ms: int
    timed_out: bool = False
    idle: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSpec:
    """A command that decides about a candidate: it must end with `expected_exit_code` within the time limit."""

    name: str
    command: str
    timeout_seconds: float = 600.0
    required: bool = True
    expected_exit_code: int = 0

    @property
    def line(self) -> str:
        """The command for people, after its name where it has a name of its own."""
        return f"{self.name}: `{self.command}`" if self.name not in ("", self.command) else f"`{self.command}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMcpServer:
    """An MCP server of a task; either `command` (confined, over the agent's clone) or `url` is given.

    `tools` are globs over the names of the tools that agents may call; `allowed_hosts` are the hosts that a command may
    reach.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    tools: tuple[str, ...] = ("*",)
    allowed_hosts: tuple[str, ...] = ()


DEFAULT_PORTS = (80, 443)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = rf"(?:{_LABEL}\.)*{_LABEL}\.?"
_PATTERN = re.compile(
    rf"(?:\[(?P<literal>[0-9a-f:.]+)\]|(?P<name>\*|(?:\*\.)?{_HOST}))(?::(?P<port>[0-9]{{1,5}}))?"
    r"|(?P<bare>[0-9a-f]*:[0-9a-f:.]+)"
)


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """The host as an IP address; None where it is a name."""
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
        """Whether a host (in lower case, without a dot at its end) at a port matches."""
        return port in (DEFAULT_PORTS if self.port is None else (self.port,)) and self._covers_name(host)

    def includes(self, other: HostPattern) -> bool:
        """Whether everything that matches `other` matches this one too."""
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

    `hosts` are patterns (see `HostPattern`). They allow public addresses only. `private_hosts` are exact names
    (optionally with `:port`) which may resolve to any address, for a package mirror on a private network; a name that
    strangers control must not be there. Raises InvalidRequest for a text that is not a pattern.
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
        """Whether a host may be reached at any address."""
        patterns = [HostPattern.parse(text) for text in self.private_hosts]
        return any(pattern.exact and pattern.covers(host, port) for pattern in patterns)

    def narrowed(self, hosts: tuple[str, ...], *, field: str) -> NetworkGrant:
        """The part of this grant that a caller asks for. Raises InvalidRequest for a host that is not in it."""
        granted = [HostPattern.parse(text) for text in (*self.hosts, *self.private_hosts)]
        for number, text in enumerate(hosts):
            host = HostPattern.parse(text, field=f"{field}[{number}]")
            if not any(pattern.includes(host) for pattern in granted):
                raise InvalidRequest(
                    f"the host {text[:80]!r} is not allowed here",
                    field=f"{field}[{number}]",
                    hint=f"allowed are: {', '.join((*self.hosts, *self.private_hosts)) or 'none'}",
                )
        private = tuple(text for text in self.private_hosts if any(_same(text, requested) for requested in hosts))
        return NetworkGrant(hosts=hosts, private_hosts=private)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRules:
    """The network of an installation: `default` for tasks that name no hosts, `ceiling` bounds those that do."""

    default: NetworkGrant = field(default_factory=NetworkGrant)
    ceiling: NetworkGrant = field(default_factory=lambda: NetworkGrant(hosts=("*",)))

    def grant(self, hosts: tuple[str, ...] | None) -> NetworkGrant:
        """The grant of a task that asks for `hosts` (None: the default). Raises InvalidRequest beyond the ceiling."""
        if hosts is None:
            return self.default
        return self.ceiling.narrowed(hosts, field="constraints.network.allowed_hosts")


def _same(pattern: str, other: str) -> bool:
    return HostPattern.parse(pattern) == HostPattern.parse(other)
