"""What tools may use beside their workspace: an installation's services, and what a task asks for on top."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.network import HostPattern, NetworkGrant, NetworkRules
from swe_ai_fleet.domain.task import Constraints, TaskMcpServer
from swe_ai_fleet.sandbox import SandboxPolicy
from swe_ai_fleet.tools.builtin import BuiltinSettings
from swe_ai_fleet.tools.docker import DockerPolicy
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.git.grants import RemoteGrant
from swe_ai_fleet.tools.http.transport import parse_url, port_of
from swe_ai_fleet.tools.mcp import McpServer
from swe_ai_fleet.tools.registry.base_tool import BaseTool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAccess:
    """The services that an operator configured, and the hosts that tasks may ask for.

    `databases` are URLs by name; those of `writable_databases` may be written. Without `docker` agents get no
    containers. `plugins` are tools that other distributions bring. `sandbox` is where git reaches `remotes` from and
    what confines MCP servers.
    """

    network: NetworkRules = field(default_factory=NetworkRules)
    databases: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    writable_databases: tuple[str, ...] = ()
    remotes: tuple[RemoteGrant, ...] = ()
    docker: DockerPolicy | None = None
    mcp_servers: tuple[McpServer, ...] = ()
    builtin: BuiltinSettings = field(default_factory=lambda: BuiltinSettings(wikipedia_url=""))
    plugins: tuple[BaseTool, ...] = ()
    sandbox: SandboxPolicy = field(default_factory=SandboxPolicy)

    def hosts(self, constraints: Constraints) -> NetworkGrant | None:
        """What commands and requests of a task may reach. Raises InvalidRequest for what is not grantable."""
        return self.network.grant(constraints.allowed_hosts) or None

    def servers(self, constraints: Constraints) -> tuple[McpServer, ...]:
        """The installation's MCP servers and those of the task. Raises InvalidRequest naming the task's field."""
        servers = list(self.mcp_servers)
        for number, asked in enumerate(constraints.mcp_servers):
            place = f"constraints.mcp_servers[{number}]"
            if any(asked.name == server.name for server in servers):
                raise InvalidRequest(f"the name {asked.name[:64]!r} of an MCP server is taken", field=f"{place}.name")
            servers.append(self._server(asked, place))
        return tuple(servers)

    def check(self, constraints: Constraints) -> None:
        """Whether a task gets what it asks for. Raises InvalidRequest naming its field."""
        self.hosts(constraints)
        self.servers(constraints)

    def _server(self, asked: TaskMcpServer, place: str) -> McpServer:
        try:
            server = McpServer(
                name=asked.name, command=asked.command, url=asked.url, variables=asked.variables, tools=asked.tools
            )
        except InvalidRequest as error:
            raise InvalidRequest(error.message, field=f"{place}.{error.field}", hint=error.hint) from None
        if not asked.url:
            network = self.network.ceiling.narrowed(asked.allowed_hosts, field=f"{place}.allowed_hosts")
            return replace(server, network=network)
        host = _host(asked.url)
        try:
            grant = self.network.ceiling.narrowed((host,), field="url")
        except InvalidRequest as error:
            raise InvalidRequest(error.message, field=f"{place}.url", hint=error.hint) from None
        pattern = HostPattern.parse(host)
        return replace(server, private=grant.private(pattern.name, pattern.port or 0))


def _host(text: str) -> str:
    """The host and port of a URL that was checked before, as a pattern."""
    try:
        url = parse_url(text)
    except ToolFailure as error:
        raise InvalidRequest(error.message, field="url") from None
    name = f"[{url.host}]" if ":" in url.host else url.host
    return f"{name}:{port_of(url)}"
