"""What tools may use, from settings: services, grants, plug-ins, and the mask of their secrets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError

from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.network import HostPattern, NetworkGrant, NetworkRules
from swe_ai_fleet.runtime.sandboxes import sandbox_policy
from swe_ai_fleet.settings import Settings, listed
from swe_ai_fleet.tools.access import ToolAccess
from swe_ai_fleet.tools.builtin import BuiltinSettings, builtin_tools
from swe_ai_fleet.tools.catalogue import TOOLKITS
from swe_ai_fleet.tools.db.connections import secret_values
from swe_ai_fleet.tools.docker import DockerPolicy
from swe_ai_fleet.tools.git.grants import RemoteGrant
from swe_ai_fleet.tools.mcp import McpServer
from swe_ai_fleet.tools.registry.base_tool import BaseTool
from swe_ai_fleet.tools.registry.plugins import load_plugins
from swe_ai_fleet.tools.registry.registry import ToolRegistry
from swe_ai_fleet.tools.secrets import Secrets

T = TypeVar("T")


def tool_access(settings: Settings) -> ToolAccess:
    """The services that tools may use beside their workspace. Raises InvalidRequest naming a malformed setting."""
    (docker,) = _configured([settings.docker], DockerPolicy, "docker") if settings.docker else (None,)
    return ToolAccess(
        network=_network_rules(settings),
        databases=settings.databases,
        writable_databases=listed(settings.writable_databases),
        remotes=_configured(settings.git_remotes, RemoteGrant, "git_remotes"),
        docker=docker,
        mcp_servers=_configured(settings.mcp_servers, McpServer, "mcp_servers"),
        builtin=BuiltinSettings(search_url=settings.search_url, wikipedia_url=settings.wikipedia_url),
        plugins=_plugins(listed(settings.plugins)),
        sandbox=sandbox_policy(settings),
    )


def secret_mask(settings: Settings) -> Secrets:
    """The mask of everything that leaves the process."""
    remotes = _configured(settings.git_remotes, RemoteGrant, "git_remotes")
    servers = _configured(settings.mcp_servers, McpServer, "mcp_servers")
    return Secrets(
        (
            *settings.secrets,
            *secret_values(settings.databases),
            *secret_values({"memory_store": settings.memory_store} if "://" in settings.memory_store else {}),
            *secret_values(_with_users(settings)),
            *secret_values(_index_urls(settings)),
            *(secret for server in servers for secret in server.secrets),
            *(remote.secret for remote in remotes if remote.secret),
        )
    )


def _index_urls(settings: Settings) -> dict[str, str]:
    """The URLs with a user among the variables that set-up commands get: an index may want to be logged in to."""
    found = {name: os.environ.get(name, "") for name in listed(settings.setup_variables)}
    return {name: url for name, url in found.items() if "://" in url and "@" in url}


def _with_users(settings: Settings) -> dict[str, str]:
    """The URLs in settings that name a user, and so perhaps a password."""
    named = (
        settings.nats_url,
        settings.model_url,
        settings.otlp_endpoint,
        settings.embeddings_url,
        settings.search_url,
    )
    return {url: url for text in named for url in listed(text) if "@" in url}


def _plugins(names: tuple[str, ...]) -> tuple[BaseTool, ...]:
    """The tools of the named plug-ins. Raises InvalidRequest for one that is not there or does not load."""
    if not names:
        return ()
    registry = ToolRegistry(builtin_tools())
    report = load_plugins(registry, only=names)
    broken = {plugin.name: plugin.reason for plugin in report.broken}
    loaded = {plugin.name for plugin in report.loaded}
    for name in names:
        if name not in loaded:
            reason = broken.get(name, "no installed distribution brings it")
            raise InvalidRequest(f"the plug-in {name!r} cannot be used: {reason}", field="plugins")
    tools = [registry.get_tool(tool) for plugin in report.loaded for tool in plugin.tools]
    taken = {definition.spec.name for kit in TOOLKITS for definition in kit.definitions.values()}
    for tool in tools:
        if tool.name in taken:
            raise InvalidRequest(f"a plug-in brings {tool.name}, which is there already", field="plugins")
    return tuple(tools)


def _configured(values: Sequence[object], kind: type[T], field: str) -> tuple[T, ...]:
    """The values of a setting. Raises InvalidRequest naming it."""
    try:
        return tuple(from_plain(kind, value) for value in values)
    except ValidationError as error:
        # Without the values: they may be secrets.
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise InvalidRequest(f"FLEET_{field.upper()} is malformed: {faults}", field=field) from None
    except InvalidRequest as error:
        raise InvalidRequest(error.message, field=f"{field}.{error.field}", hint=error.hint) from None


def _network_rules(settings: Settings) -> NetworkRules:
    default, private, grantable = (
        _patterns(getattr(settings, name), name) for name in ("tool_hosts", "tool_private_hosts", "grantable_hosts")
    )
    ceiling = NetworkGrant(hosts=(*grantable, *default), private_hosts=private)
    return NetworkRules(default=ceiling.narrowed(default, field="tool_hosts"), ceiling=ceiling)


def _patterns(text: str, field: str) -> tuple[str, ...]:
    for pattern in listed(text):
        HostPattern.parse(pattern, field=field)
    return listed(text)
