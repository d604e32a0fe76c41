"""MCP servers as tools."""

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
"""In a row: an answered call in between starts the count again."""
_PING_SECONDS = 5.0
_DEFAULT_SANDBOX = SandboxPolicy()
_log = structlog.get_logger(__name__)


class Link:
    """A server and the tools of it that were offered when the run began; what it lists later is never taken up.

    Args:
        server: Which one.
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
        """Start the server and list its tools. Where it cannot be reached in time there is a note, and no tools."""
        # The SDK takes half a second to load: the first server of a process does, beside the event loop.
        await asyncio.to_thread(import_module, "swe_ai_fleet.extensions.mcp.client.connection")
        try:
            async with asyncio.timeout(self.server.start_seconds):
                await self._connect()
        except TimeoutError:
            self._note(f"it did not answer within {self.server.start_seconds:g} seconds; its tools are absent")
        except FleetError as error:
            self._note(f"its tools are absent: {error}")

    def offer(self, taken: Collection[str], *, hints: bool) -> list[ListedTool]:
        """The tools that agents may see, named around names that are `taken`; see `offers` for `hints`."""
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
            # Out of time, perhaps because the server hangs: it is asked before the next call whether it does.
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
        """A connection that works, and what it lists at the moment."""
        async with self._connecting:
            connection = self._connection
            if connection is not None and not connection.ended and self._doubtful:
                # A part of what the call itself may take, or the question would use it up.
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
        """Whether the tool is still the one that was offered. Raises ToolFailure, ToolRefusal."""
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
    """Tools of any MCP server, behind each server's list of allowed ones; an async context manager.

    Entering it starts or reaches the servers, all at once, and sets `definitions`, by the names that models call them
    (`<server>_<tool>`). A server that cannot be had is missing from them and named in `notes`. Leaving it, or its
    cancellation, ends every process it started.

    Args:
        workspace: Whose directory a server that is a process sees.
        servers: The configured servers.
        sandbox: The isolation level and the limits of such processes; confined ones need bubblewrap.
        reserved: Names of other toolkits and of their operations, which no server and no tool of one may take.
        restart_seconds: The wait before a dead server is started anew; it doubles each time.
        hints: Whether a tool only reads where its server says so, beside the operator's word.

    Raises:
        InvalidRequest: Two servers have one name, or one has a reserved name.
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
        """Which servers and tools are missing, and why; for an operator, since servers have a say in the words."""
        return tuple(note for link in self._links for note in link.notes)

    @property
    def gaps(self) -> tuple[str, ...]:
        # A server's own words are for the log: nothing that it says may stand in a system prompt.
        names = (link.server.name for link in self._links if link.notes)
        return tuple(f"Not all tools of the MCP server {name} could be had." for name in names)

    def shared_scope(self, spec: OperationSpec) -> str | None:
        # A server that is a process sees this run's workspace, so what it says is for this run.
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
        self.own = configured(settings.mcp_servers, McpServer, "mcp_servers")
        self.secrets = [secret for server in self.own for secret in server.secrets]
        self.summary = f"{len(self.own)} MCP servers" if self.own else ""

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
        return McpTool(workspace, servers=self.own, sandbox=sandbox, reserved=taken, hints=hints)

    def servers(self, constraints: Constraints) -> tuple[McpServer, ...]:
        """The installation's servers and those of the task. Raises InvalidRequest naming the task's field."""
        servers = list(self.own)
        for number, requested in enumerate(constraints.mcp_servers):
            place = f"constraints.mcp_servers[{number}]"
            if any(requested.name == server.name for server in servers):
                raise InvalidRequest(
                    f"the name {requested.name[:64]!r} of an MCP server is taken", field=f"{place}.name"
                )
            servers.append(self._server(requested, place))
        return tuple(servers)

    def _server(self, requested: TaskMcpServer, place: str) -> McpServer:
        with fields_named(lambda head: f"{place}.{head}"):
            server = McpServer(
                name=requested.name,
                command=requested.command,
                url=requested.url,
                variables=requested.variables,
                tools=requested.tools,
            )
        ceiling = network_rules(self._settings).ceiling
        if not requested.url:
            return replace(server, network=ceiling.narrowed(requested.allowed_hosts, field=f"{place}.allowed_hosts"))
        url = parse_url(requested.url)
        host = f"[{url.host}]:{port_of(url)}" if ":" in url.host else f"{url.host}:{port_of(url)}"
        try:
            grant = ceiling.narrowed((host,), field="url")
        except InvalidRequest as error:
            raise InvalidRequest(error.message, field=f"{place}.url", hint=error.hint) from None
        return replace(server, private=grant.private(HostPattern.parse(host).name, port_of(url)))
