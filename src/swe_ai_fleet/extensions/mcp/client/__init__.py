"""The tools of MCP servers, as a toolkit of agents."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Self

import structlog

from swe_ai_fleet.domain.command import HostPattern, TaskMcpServer
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, fields_named
from swe_ai_fleet.domain.json_values import with_texts
from swe_ai_fleet.domain.task import Constraints, Task
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.domain.tool import OperationSpec, ToolResult
from swe_ai_fleet.extensions.mcp.client.listing import ListedTool, McpServer, ServerTool, offers
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.runtime.tool_services import configured, network_rules, sandbox_policy
from swe_ai_fleet.sandbox.policy import SandboxPolicy
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.definition import Definition, ToolFailure, ToolRefusal
from swe_ai_fleet.tools.http_transport import parse_url, port_of
from swe_ai_fleet.tools.operation import SchemaOperation, Toolkit
from swe_ai_fleet.tools.pack import ToolPack
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.secrets import Secrets

if TYPE_CHECKING:
    from swe_ai_fleet.extensions.mcp.client.connection import McpConnection

MAX_RESTARTS = 3
"""The most restarts in a row; an answered call resets the count."""
_PING_SECONDS = 5.0
_DEFAULT_SANDBOX = SandboxPolicy()
_log = structlog.get_logger(__name__)


class Link:
    """A server and the tools that it listed when the run began; tools that it adds later are never offered.

    Args:
        server: The server.
        root: The agent's workspace on this host.
        policy: The limits of a confined server.
        restart_seconds: The wait before the first restart; it doubles with each further one.
    """

    def __init__(self, server: McpServer, root: Path, policy: SandboxPolicy, *, restart_seconds: float) -> None:
        self.server = server
        self.notes: list[str] = []
        self._root = root
        self._policy = policy
        self._restart_seconds = restart_seconds
        self._mask = Secrets(server.secrets)
        self._connection: McpConnection | None = None
        self._connecting = asyncio.Lock()
        self._listed: dict[str, ServerTool] = {}
        self._restarts = 0
        self._doubtful = False

    async def start(self) -> None:
        """Start the server and list its tools. If it does not answer in time, there is a note, and no tools."""
        # The SDK takes half a second to load, so it is loaded in a thread.
        await asyncio.to_thread(import_module, "swe_ai_fleet.extensions.mcp.client.connection")
        try:
            async with asyncio.timeout(self.server.start_seconds):
                await self._connect()
        except TimeoutError:
            self._note(f"it did not answer within {self.server.start_seconds:g} seconds; its tools are absent")
        except FleetError as error:
            self._note(f"its tools are absent: {error}")

    def offer(self, taken: Collection[str], *, hints: bool) -> list[ListedTool]:
        """The tools that agents may see, under names that are not `taken`; see `offers` for `hints`."""
        if self._connection is None:
            return []
        offers_made, notes = offers(self.server, self._listed, taken=taken, mask=self._mask, hints=hints)
        for note in notes:
            self._note(note)
        return offers_made

    async def call(self, offer: ListedTool, arguments: Mapping[str, object]) -> ToolResult:
        try:
            connection = await self._connected()
            self._check(offer)
            answer = await connection.call(offer.tool, arguments)
        except asyncio.CancelledError:
            # Perhaps a timeout because the server hangs: the next call pings it first.
            self._doubtful = True
            raise
        except FleetError as error:
            kind = ToolRefusal if isinstance(error, ToolRefusal) else ToolFailure
            raise kind(self._mask(str(error))) from None
        self._restarts = 0
        text = self._mask(answer.text)
        if answer.failed:
            raise ToolFailure(text or f"{offer.spec.name} failed without a reason")
        metadata: dict[str, object] = {"server": self.server.name}
        if answer.structured is not None:
            metadata["structured"] = with_texts(answer.structured, self._mask)
        return ToolResult(success=True, operation=offer.spec.name, content=text, metadata=metadata)

    async def close(self, *, grace_seconds: float) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await uninterrupted(connection.close(grace_seconds=grace_seconds))

    async def _connected(self) -> McpConnection:
        """A working connection, with its tools listed again if they changed."""
        async with self._connecting:
            connection = self._connection
            if connection is not None and not connection.ended and self._doubtful:
                # A part of the call's time limit, or the ping would use it up.
                timeout = min(_PING_SECONDS, self.server.time_limit_seconds / 4)
                if not await connection.responds(within_seconds=timeout):
                    await self.close(grace_seconds=0)
                self._doubtful = False
            connection = self._connection
            if connection is None or connection.ended:
                return await self._restart()
            if connection.tools_changed():
                self._listed = await connection.tools()
            return connection

    async def _restart(self) -> McpConnection:
        if self._restarts >= MAX_RESTARTS:
            raise ToolFailure(
                f"the MCP server {self.server.name} was restarted {MAX_RESTARTS} times and keeps failing; "
                "do without its tools"
            )
        await self.close(grace_seconds=0)
        await asyncio.sleep(self._restart_seconds * 2**self._restarts)
        self._restarts += 1
        try:
            async with asyncio.timeout(self.server.start_seconds):
                return await self._connect()
        except TimeoutError:
            raise ToolFailure(f"the MCP server {self.server.name} could not be restarted in time") from None
        except FleetError as error:
            raise ToolFailure(f"the MCP server {self.server.name} could not be restarted: {error}") from None

    async def _connect(self) -> McpConnection:
        from swe_ai_fleet.extensions.mcp.client.connection import McpConnection

        connection = await McpConnection.open(self.server, self._root, self._policy)
        try:
            self._listed = await connection.tools()
        except BaseException:
            await uninterrupted(connection.close(grace_seconds=0))
            raise
        self._connection = connection
        self._doubtful = False
        return connection

    def _check(self, offer: ListedTool) -> None:
        """Check that the tool is unchanged since it was offered. Raises ToolFailure, ToolRefusal."""
        tool = self._listed.get(offer.tool)
        if tool is None:
            raise ToolFailure(f"the MCP server {self.server.name} no longer has {offer.spec.operation!r}")
        if tool.fingerprint != offer.fingerprint:
            raise ToolRefusal(
                f"the MCP server {self.server.name} has changed what {offer.spec.operation!r} is since the run began; "
                "it is no longer called"
            )

    def _note(self, text: str) -> None:
        self.notes.append(self._mask(f"MCP server {self.server.name}: {text}"))


class McpTool(Toolkit):
    """The allowed tools of MCP servers; an async context manager.

    Its entry starts or connects to all servers concurrently and sets `definitions`, by the tools' names for models
    (`<server>_<tool>`). `notes` names the servers that could not be reached, whose tools are missing. Its exit, or
    cancellation, ends every process that it started.

    Args:
        workspace: Its directory is visible to servers that are commands.
        servers: The configured servers.
        sandbox: The isolation level and the limits of such commands; confined ones need bubblewrap.
        reserved: Names of other toolkits and their operations, which no server and no tool may have.
        restart_seconds: The wait before a dead server is restarted; it doubles each time.
        hints: Whether a tool also counts as read-only if only its server says so.

    Raises:
        InvalidRequest: Two servers have the same name, or one has a reserved name.
    """

    name = "mcp"
    chosen = True

    def __init__(
        self,
        workspace: Workspace,
        pipeline: Pipeline | None = None,
        *,
        servers: tuple[McpServer, ...] = (),
        sandbox: SandboxPolicy = _DEFAULT_SANDBOX,
        reserved: Collection[str] = frozenset(),
        restart_seconds: float = 0.5,
        hints: bool = False,
    ) -> None:
        super().__init__(workspace, pipeline)
        names = [server.name for server in servers]
        for name in names:
            if names.count(name) > 1 or name in reserved:
                raise InvalidRequest(f"the name {name!r} of an MCP server is taken", field="name")
        self._reserved, self._hints = frozenset(reserved), hints
        self.lasting = any(server.command for server in servers)
        self._grace_seconds = sandbox.grace_seconds
        root = workspace.root
        self._links = [Link(server, root, sandbox, restart_seconds=restart_seconds) for server in servers]

    @property
    def notes(self) -> tuple[str, ...]:
        """The missing servers and tools, with reasons; for operators only: servers may have written the reasons."""
        return tuple(note for link in self._links for note in link.notes)

    @property
    def gaps(self) -> tuple[str, ...]:
        # Without the server's reasons: its text must not get into a system prompt.
        names = (link.server.name for link in self._links if link.notes)
        return tuple(f"Not all tools of the MCP server {name} are available." for name in names)

    def shared_scope(self, spec: OperationSpec) -> str | None:
        # Results of a server that is a command may depend on this run's workspace.
        server = next((link.server for link in self._links if link.server.name == spec.tool), None)
        return repr((server.url, sorted(server.headers.items()))) if server is not None and server.url else None

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.TaskGroup() as group:
                for link in self._links:
                    group.create_task(link.start())
            self.definitions = self._defined()
            for note in self.notes:
                _log.warning("mcp.incomplete", reason=note)
        except BaseException:
            await self._close(grace_seconds=0)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._close(grace_seconds=0 if kind else self._grace_seconds)

    def _defined(self) -> dict[str, Definition]:
        definitions: dict[str, Definition] = {}
        for link in self._links:
            for offer in link.offer({*self._reserved, *definitions}, hints=self._hints):
                try:
                    definitions[offer.spec.name] = SchemaOperation(offer.spec, partial(link.call, offer))
                except InvalidRequest as error:
                    link.notes.append(f"MCP server {link.server.name}: a tool is left out: {error.message[:300]}")
        return definitions

    async def _close(self, *, grace_seconds: float) -> None:
        await asyncio.gather(*(link.close(grace_seconds=grace_seconds) for link in self._links))


class McpPack(ToolPack):
    """The MCP servers that settings name, and those that tasks bring."""

    kit = McpTool

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.configured = configured(settings.mcp_servers, McpServer, "mcp_servers")
        self.secrets = [secret for server in self.configured for secret in server.secrets]
        self.summary = counted(len(self.configured), "MCP server") if self.configured else ""

    def toolkit(
        self, workspace: Workspace, pipeline: Pipeline, task: Task | None = None, taken: Collection[str] = ()
    ) -> Toolkit | None:
        if task is None or not (servers := self.servers(task.constraints)):
            return None
        sandbox = replace(sandbox_policy(self._settings), tenant=task.tenant)
        return McpTool(workspace, pipeline, servers=servers, sandbox=sandbox, reserved=taken)

    def server_names(self, constraints: Constraints) -> Collection[str]:
        return [server.name for server in self.servers(constraints)]

    def beside_runs(self, workspace: Workspace, taken: Collection[str], *, hints: bool) -> Toolkit:
        sandbox = sandbox_policy(self._settings)
        return McpTool(workspace, servers=self.configured, sandbox=sandbox, reserved=taken, hints=hints)

    def servers(self, constraints: Constraints) -> tuple[McpServer, ...]:
        """The installation's servers and those of the task. Raises InvalidRequest naming the task's field."""
        servers = list(self.configured)
        for index, requested in enumerate(constraints.mcp_servers):
            prefix = f"constraints.mcp_servers[{index}]"
            if any(requested.name == server.name for server in servers):
                raise InvalidRequest(
                    f"the name {requested.name[:64]!r} of an MCP server is taken", field=f"{prefix}.name"
                )
            servers.append(self._server(requested, prefix))
        return tuple(servers)

    def _server(self, requested: TaskMcpServer, prefix: str) -> McpServer:
        with fields_named(lambda head: f"{prefix}.{head}"):
            server = McpServer(
                name=requested.name,
                command=requested.command,
                url=requested.url,
                variables=requested.variables,
                tools=requested.tools,
            )
        ceiling = network_rules(self._settings).ceiling
        if not requested.url:
            return replace(server, network=ceiling.narrowed(requested.allowed_hosts, field=f"{prefix}.allowed_hosts"))
        url = parse_url(requested.url)
        host = f"[{url.host}]:{port_of(url)}" if ":" in url.host else f"{url.host}:{port_of(url)}"
        try:
            grant = ceiling.narrowed((host,), field="url")
        except InvalidRequest as error:
            raise InvalidRequest(error.message, field=f"{prefix}.url", hint=error.hint) from None
        return replace(server, private=grant.private(HostPattern.parse(host).name, port_of(url)))
