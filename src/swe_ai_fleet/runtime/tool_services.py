"""Services of tools, from settings: the sandbox of a node, grants, plug-ins, packs, the mask of their secrets.

Chats and plans, which have no clone, get the tools of the operator's servers from here, too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.command import HostPattern, NetworkGrant, NetworkRules
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import Constraints
from swe_ai_fleet.extension_registry import extensions
from swe_ai_fleet.sandbox import CpuSlots, IsolationLevel, Sandbox, SandboxPolicy, choose_isolation_level
from swe_ai_fleet.sandbox.images import ImageContainer
from swe_ai_fleet.settings import OF_EXTENSIONS, Settings, listed, on_loopback
from swe_ai_fleet.tools.base_tool import BaseTool
from swe_ai_fleet.tools.builtin import BuiltinSettings, builtin_tools
from swe_ai_fleet.tools.catalogue import ToolAccess, operations
from swe_ai_fleet.tools.git.gateway import RemoteGrant
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pack import installed_packs
from swe_ai_fleet.tools.registry import ToolRegistry, load_plugins
from swe_ai_fleet.tools.secrets import Secrets, url_secrets

SLOTS_PER_CPU = 2
T = TypeVar("T")


async def with_isolation_level(settings: Settings) -> Settings:
    """The settings with the isolation level that works on this node instead of `auto`. Raises PreconditionFailed."""
    return settings.model_copy(update={"sandbox": str(await choose_isolation_level(settings.sandbox))})


def make_sandbox(settings: Settings) -> Sandbox:
    """The sandbox of this node. An isolation level that the machine lacks fails with the first command."""
    count = settings.cpu_slots or SLOTS_PER_CPU * (os.cpu_count() or 1)
    container = ImageContainer(settings.image_container) if settings.image_container else None
    return Sandbox(sandbox_policy(settings), CpuSlots(settings.home / "slots", count), container)


def sandbox_policy(settings: Settings) -> SandboxPolicy:
    """The isolation level and the limits of every sandbox of this node; an untried `auto` counts as bubblewrap."""
    level = IsolationLevel.BUBBLEWRAP if settings.sandbox == "auto" else IsolationLevel(settings.sandbox)
    return SandboxPolicy(
        level=level,
        max_processes=settings.max_processes,
        max_cpus=settings.max_cpus,
        max_disk_bytes=settings.max_disk_bytes,
        reserved_ports=_own_ports(settings),
    )


def _own_ports(settings: Settings) -> frozenset[int]:
    """The ports of this machine that the fleet listens on or connects to; no command may listen on them instead."""
    called = (
        *(settings.nats_url, settings.ray_address, settings.model_url, settings.embeddings_url),
        *(settings.orchestrator_url, settings.context_url),
    )
    urls = [urlsplit(url if "://" in url else f"//{url}") for text in called for url in listed(text)]
    ports = [url.port or 0 for url in urls if on_loopback(f"{url.hostname}:0")]
    listening = (
        *(settings.listen, settings.context_address, settings.http_listen),
        *(settings.metrics_listen, settings.probe_listen),
    )
    ports += [int(port) for address in listening if (port := address.rpartition(":")[2]).isdecimal()]
    return frozenset(ports) - {0}


def tool_access(settings: Settings) -> ToolAccess:
    """The services that tools may use beside their workspace.

    Raises InvalidRequest naming a malformed setting, PreconditionFailed naming one whose extension is not installed.
    """
    for name, extension in OF_EXTENSIONS.items():
        if getattr(settings, name) and extension not in extensions():
            raise PreconditionFailed(
                f"the extension of this setting, `{extension}`, was removed",
                field=name,
                hint=f"leave FLEET_{name.upper()} out, or install the extension",
            )
    return ToolAccess(
        network=network_rules(settings),
        remotes=configured(settings.git_remotes, RemoteGrant, "git_remotes"),
        builtin=BuiltinSettings(search_url=settings.search_url, wikipedia_url=settings.wikipedia_url),
        packs=tuple(pack(settings) for pack in installed_packs()),
        plugins=_plugins(listed(settings.plugins)),
        sandbox=sandbox_policy(settings),
    )


def secret_mask(settings: Settings) -> Secrets:
    """The mask of everything that leaves the process."""
    remotes = configured(settings.git_remotes, RemoteGrant, "git_remotes")
    return Secrets(
        (
            *settings.secrets,
            *url_secrets(_urls(settings)),
            *(secret for pack in installed_packs() for secret in pack(settings).secrets),
            *(remote.secret for remote in remotes if remote.secret),
        )
    )


def _urls(settings: Settings) -> Iterator[str]:
    """The URLs in settings that may hold a password."""
    if "://" in settings.memory_store:
        yield settings.memory_store
    named = (
        *(settings.nats_url, settings.model_url, settings.otlp_endpoint, settings.embeddings_url, settings.search_url),
    )
    yield from (url for text in named for url in listed(text) if "@" in url)
    # Set-up commands get these: a package index may need credentials.
    indexes = (os.environ.get(name, "") for name in listed(settings.setup_variables))
    yield from (url for url in indexes if "://" in url and "@" in url)


def _plugins(names: tuple[str, ...]) -> tuple[BaseTool, ...]:
    """The tools of the named plug-ins. Raises InvalidRequest for one that is missing or does not load."""
    if not names:
        return ()
    registry = ToolRegistry(builtin_tools())
    report = load_plugins(registry, only=names)
    broken = {plugin.name: plugin.reason for plugin in report.broken}
    loaded = {plugin.name for plugin in report.loaded}
    for name in names:
        if name not in loaded:
            reason = broken.get(name, "no installed package provides it")
            raise InvalidRequest(f"the plug-in {name!r} cannot be used: {reason}", field="plugins")
    tools = [registry.get_tool(tool) for plugin in report.loaded for tool in plugin.tools]
    names_taken = operations()
    for tool in tools:
        if tool.name in names_taken:
            raise InvalidRequest(f"a plug-in provides {tool.name}, which already exists", field="plugins")
    return tuple(tools)


def configured(values: Sequence[object], kind: type[T], field: str) -> tuple[T, ...]:
    """The values of a setting. Raises InvalidRequest naming it."""
    try:
        return tuple(from_plain(kind, value) for value in values)
    except ValidationError as error:
        # Without the values: they may be secrets.
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise InvalidRequest(f"FLEET_{field.upper()} is malformed: {faults}", field=field) from None
    except InvalidRequest as error:
        raise InvalidRequest(error.message, field=f"{field}.{error.field}", hint=error.hint) from None


def network_rules(settings: Settings) -> NetworkRules:
    """The hosts that tools and checks may reach. Raises InvalidRequest naming a malformed setting."""
    default, private, grantable = (
        _patterns(getattr(settings, name), name) for name in ("tool_hosts", "tool_private_hosts", "grantable_hosts")
    )
    ceiling = NetworkGrant(hosts=(*grantable, *default), private_hosts=private)
    return NetworkRules(default=ceiling.narrowed(default, field="tool_hosts"), ceiling=ceiling)


def _patterns(text: str, field: str) -> tuple[str, ...]:
    for pattern in listed(text):
        HostPattern.parse(pattern, field=field)
    return listed(text)


@asynccontextmanager
async def operator_tools(
    settings: Settings, directory: Path, *, reserved: Collection[str], hints: bool = False
) -> AsyncGenerator[tuple[Toolkit, ...]]:
    """The toolkits of the configured servers, open until the context ends.

    Args:
        settings: The servers, and a sandbox that works here (see `with_isolation_level`).
        directory: The workspace of servers that are commands; created if missing.
        reserved: Names that no tool may have.
        hints: Whether a tool also counts as read-only if only its server says so.
    """
    packs = [pack for pack in tool_access(settings).packs if pack.server_names(Constraints())]
    if not packs:
        yield ()
        return
    await asyncio.to_thread(directory.mkdir, mode=0o700, parents=True, exist_ok=True)
    async with make_sandbox(settings).workspace(directory) as workspace, AsyncExitStack() as stack:
        kits = [pack.beside_runs(workspace, reserved, hints=hints) for pack in packs]
        yield tuple([await stack.enter_async_context(kit) for kit in kits if kit is not None])
