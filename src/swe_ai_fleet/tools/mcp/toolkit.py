"""The tools of MCP servers, as operations like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from types import TracebackType
from typing import Self

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox.policy import SandboxPolicy
from swe_ai_fleet.tools.definition import Definition
from swe_ai_fleet.tools.mcp.link import Link
from swe_ai_fleet.tools.mcp.server import McpServer
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.schema_operation import SchemaOperation

_DEFAULT_SANDBOX = SandboxPolicy()


class McpTool(Toolkit):
    """Tools of any MCP server, behind each server's list of allowed ones; an async context manager.

    Entering it starts or reaches the servers, all at once, and sets `definitions`, by the names that models call them
    (`<server>_<tool>`). A server that cannot be had is missing from them and named in `notes`. Leaving it, or its
    cancellation, ends every process it started.

    Args:
        workspace: Whose directory a server that is a process sees.
        pipeline: The way every call goes.
        servers: The configured servers.
        sandbox: The rung and the limits of such processes; confined ones need bubblewrap.
        reserved: Names of other toolkits and of their operations, which no server and no tool of one may take.
        restart_seconds: The wait before a dead server is started anew; it doubles each time.

    Raises:
        InvalidRequest: Two servers have one name, or one has a reserved name.
    """

    name = "mcp"

    def __init__(
        self,
        workspace: Workspace,
        pipeline: Pipeline | None = None,
        *,
        servers: tuple[McpServer, ...] = (),
        sandbox: SandboxPolicy = _DEFAULT_SANDBOX,
        reserved: Collection[str] = frozenset(),
        restart_seconds: float = 0.5,
    ) -> None:
        super().__init__(workspace, pipeline)
        names = [server.name for server in servers]
        for name in names:
            if names.count(name) > 1 or name in reserved:
                raise InvalidRequest(f"the name {name!r} of an MCP server is taken", field="name")
        self._reserved = frozenset(reserved)
        self.lasting = any(server.command for server in servers)
        self._grace_seconds = sandbox.grace_seconds
        root = workspace.root
        self._links = [Link(server, root, sandbox, restart_seconds=restart_seconds) for server in servers]

    @property
    def notes(self) -> tuple[str, ...]:
        """Which servers and tools are missing, and why; for an operator, since servers have a say in the words."""
        return tuple(note for link in self._links for note in link.notes)

    @property
    def incomplete(self) -> tuple[str, ...]:
        """The names of the servers that are missing, or some of whose tools are."""
        return tuple(link.server.name for link in self._links if link.notes)

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
        except BaseException:
            await self._close(grace_seconds=0)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(grace_seconds=0 if kind else self._grace_seconds)

    def _defined(self) -> dict[str, Definition]:
        found: dict[str, Definition] = {}
        for link in self._links:
            for offer in link.offer({*self._reserved, *found}):
                try:
                    found[offer.spec.name] = SchemaOperation(offer.spec, partial(link.call, offer))
                except InvalidRequest as error:
                    link.notes.append(f"MCP server {link.server.name}: a tool is left out: {error.message[:300]}")
        return found

    async def _close(self, *, grace_seconds: float) -> None:
        await asyncio.gather(*(link.close(grace_seconds=grace_seconds) for link in self._links))
