"""A configured MCP server: how to reach it, and what of it agents may use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from swe_ai_fleet.domain.command import NetworkGrant
from swe_ai_fleet.domain.environment import Mount
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.http.transport import parse_url

_NAME = re.compile(r"[a-z0-9_-]{1,32}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """An MCP server as an operator configured it; either `command` or `url` is given.

    Args:
        name: Letters a-z, digits, `_` and `-`, at most 32; its tools are called `<name>_<tool>`.
        command: The argv of a server that speaks over its standard input and output. It starts in an empty home of
            its own; `{workspace}` in it stands for where the server sees the agent's workspace (`/workspace`).
        url: The endpoint of a server that speaks streamable HTTP. Redirects are not followed.
        variables: Variables for the command. Nothing of the fleet's own or the repository's environment reaches it.
        secret_variables: The same, with values that are masked in everything the server says.
        headers: Request headers for the URL; their values are secrets.
        mounts: Directories of the host that the command sees, read-only.
        network: Hosts that the command may reach, through the fleet's proxy; none without it.
        confined: False lets the command run as the fleet's own user, with its files and network. By default it sees
            the workspace, `mounts` and the system's programs, and no network.
        read_only_workspace: Whether the command may only read the workspace.
        private: Whether the URL's host may have an address on a private network or this machine.
        tools: Globs over the names of tools that agents may see. None, unless some are named; `*` is all.
        read_only_tools: Globs over those that change nothing. What the server itself says of that (`readOnlyHint`)
            counts in chats only, where nothing else is done with it than offering the tool.
        cache_seconds: For how long the answers of those may be given again to the same tenant; 0: not at all.
        time_limit_seconds: For one call.
        start_seconds: For starting up and for listing the tools.

    Raises:
        InvalidRequest: A value is none of that kind; `field` names it.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    secret_variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    mounts: tuple[Mount, ...] = ()
    network: NetworkGrant = field(default_factory=NetworkGrant)
    confined: bool = True
    read_only_workspace: bool = False
    private: bool = False
    tools: tuple[str, ...] = ()
    read_only_tools: tuple[str, ...] = ()
    cache_seconds: float = 0.0
    time_limit_seconds: float = 60.0
    start_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest(
                f"{self.name[:64]!r} is not a valid server name", field="name", hint="use 1-32 of a-z, 0-9, _ and -"
            )
        if bool(self.command) == bool(self.url):
            raise InvalidRequest(f"the MCP server {self.name} needs either a command or a url", field="command")
        for amount in ("time_limit_seconds", "start_seconds"):
            if not 0 < getattr(self, amount) <= 3600:
                raise InvalidRequest(f"{amount} of the MCP server {self.name} is not 0 to 3600", field=amount)
        if not 0 <= self.cache_seconds <= 86_400:
            raise InvalidRequest(
                f"cache_seconds of the MCP server {self.name} is not 0 to 86400", field="cache_seconds"
            )
        if self.url:
            self._check_url()
        else:
            self._check_command()

    def _check_command(self) -> None:
        if not self.command[0] or self.command[0].startswith("-") or any("\0" in word for word in self.command):
            raise InvalidRequest(f"the command of the MCP server {self.name} cannot be run", field="command")
        for name, value in (*self.variables.items(), *self.secret_variables.items()):
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                raise InvalidRequest(
                    f"{name[:64]!r} is not a variable for the MCP server {self.name}", field="variables"
                )
        if self.headers:
            raise InvalidRequest(f"the MCP server {self.name} is a command and takes no headers", field="headers")
        if not self.confined and (self.mounts or self.network or self.read_only_workspace):
            raise InvalidRequest(
                f"the MCP server {self.name} is not confined: mounts, network and read_only_workspace mean nothing",
                field="confined",
            )

    def _check_url(self) -> None:
        try:
            url = parse_url(self.url)
        except ToolFailure as error:
            raise InvalidRequest(f"the MCP server {self.name}: {error.message}", field="url") from None
        if self.headers and url.scheme == "http" and not self.private:
            raise InvalidRequest(
                f"the headers of the MCP server {self.name} would travel in clear text", field="url", hint="use https"
            )
        for name, value in self.headers.items():
            if not _HEADER.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                raise InvalidRequest(f"the header {name[:64]!r} holds what no header may hold", field="headers")

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that nobody may see: those of headers, with and without a scheme in front, and of variables."""
        values = (*self.headers.values(), *self.secret_variables.values())
        return (*values, *(value.partition(" ")[2] for value in self.headers.values() if " " in value))

    @property
    def networked(self) -> bool:
        """Whether a call may reach the network."""
        return bool(self.url or self.network or not self.confined)

    def offers(self, tool: str) -> bool:
        """Whether agents may see a tool of this name."""
        return any(fnmatchcase(tool, glob) for glob in self.tools)

    def only_reads(self, tool: str) -> bool:
        """Whether the operator vouches that the tool changes nothing."""
        return any(fnmatchcase(tool, glob) for glob in self.read_only_tools)
