"""From settings to the parts: each is made here and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider, SetupPolicy
from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.adapters.model_providers import provider_endpoint
from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.network import NetworkGrant, NetworkRules
from swe_ai_fleet.sandbox import CpuSlots, Rung, Sandbox, SandboxPolicy
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.access import ToolAccess
from swe_ai_fleet.tools.base_tool import BaseTool
from swe_ai_fleet.tools.builtin import BuiltinSettings
from swe_ai_fleet.tools.db.connections import secret_values
from swe_ai_fleet.tools.docker import DockerPolicy
from swe_ai_fleet.tools.git_grants import RemoteGrant
from swe_ai_fleet.tools.mcp import McpServer
from swe_ai_fleet.tools.plugins import load_plugins
from swe_ai_fleet.tools.registry import ToolRegistry
from swe_ai_fleet.tools.secrets import Secrets

SLOTS_PER_CPU = 2
T = TypeVar("T")


def open_model(settings: Settings) -> OpenAIChatModel:
    """A client of the model server. Raises InvalidRequest when none is configured."""
    endpoint = provider_endpoint(settings.model, settings.model_url, settings.model_api_key)
    if not endpoint.base_url:
        raise InvalidRequest("no model server is configured", field="model_url", hint="set FLEET_MODEL_URL")
    return OpenAIChatModel(
        base_url=endpoint.base_url,
        model=endpoint.model,
        api_key=endpoint.api_key,
        timeout_seconds=settings.model_timeout_seconds,
    )


def connect_log(settings: Settings, *, name: str) -> AbstractAsyncContextManager[JetStream]:
    """A connection to the event log, the blob store and the result bus."""
    credentials = Credentials(token=settings.nats_token) if settings.nats_token else None
    return JetStream.connect(settings.nats_url, credentials=credentials, name=name)


def make_sandbox(settings: Settings) -> Sandbox:
    """The sandbox of this node. Whether the machine offers the wanted rung shows with the first command."""
    count = settings.cpu_slots or SLOTS_PER_CPU * (os.cpu_count() or 1)
    return Sandbox(sandbox_policy(settings), CpuSlots(settings.home / "slots", count))


def sandbox_policy(settings: Settings) -> SandboxPolicy:
    """The rung and the limits of every sandbox of this node."""
    rung = Rung.NONE if settings.sandbox == "none" else Rung.BUBBLEWRAP
    return SandboxPolicy(rung=rung, max_processes=settings.max_processes)


def workspace_provider(settings: Settings) -> GitWorkspaceProvider:
    """Repositories, clones and environments of this node."""
    return GitWorkspaceProvider(
        settings.home,
        make_sandbox(settings),
        allowed_roots=tuple(Path(root) for root in settings.repository_roots.split(":") if root),
        allow_local_paths=settings.loopback,
        setup=SetupPolicy(
            network=NetworkGrant(
                hosts=_listed(settings.setup_hosts), private_hosts=_listed(settings.setup_private_hosts)
            ),
            variables={name: os.environ[name] for name in _listed(settings.setup_variables) if name in os.environ},
        ),
        mask=secret_mask(settings),
    )


def _network_rules(settings: Settings) -> NetworkRules:
    default, private = _listed(settings.tool_hosts), _listed(settings.tool_private_hosts)
    ceiling = NetworkGrant(hosts=(*_listed(settings.grantable_hosts), *default), private_hosts=private)
    return NetworkRules(default=ceiling.narrowed(default, field="tool_hosts"), ceiling=ceiling)


def tool_access(settings: Settings) -> ToolAccess:
    """The services that tools may use beside their workspace. Raises InvalidRequest naming a malformed setting."""
    (docker,) = _configured([settings.docker], DockerPolicy, "docker") if settings.docker else (None,)
    return ToolAccess(
        network=_network_rules(settings),
        databases=settings.databases,
        writable_databases=_listed(settings.writable_databases),
        remotes=_configured(settings.git_remotes, RemoteGrant, "git_remotes"),
        docker=docker,
        mcp_servers=_configured(settings.mcp_servers, McpServer, "mcp_servers"),
        builtin=BuiltinSettings(search_url=settings.search_url, wikipedia_url=settings.wikipedia_url),
        plugins=_plugins(_listed(settings.plugins)),
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
            *(secret for server in servers for secret in server.secrets),
            *(remote.secret for remote in remotes if remote.secret),
        )
    )


def _plugins(names: tuple[str, ...]) -> tuple[BaseTool, ...]:
    """The tools of the named plug-ins. Raises InvalidRequest for one that is not there or does not load."""
    if not names:
        return ()
    registry = ToolRegistry()
    report = load_plugins(registry, only=names)
    broken = {plugin.name: plugin.reason for plugin in report.broken}
    loaded = {plugin.name for plugin in report.loaded}
    for name in names:
        if name not in loaded:
            reason = broken.get(name, "no installed distribution brings it")
            raise InvalidRequest(f"the plug-in {name!r} cannot be used: {reason}", field="plugins")
    return tuple(registry.get_all_tools().values())


def _configured(values: Sequence[object], kind: type[T], field: str) -> tuple[T, ...]:
    """The values of a setting. Raises InvalidRequest naming it."""
    try:
        return tuple(from_plain(kind, value) for value in values)
    except ValueError as error:
        raise InvalidRequest(f"FLEET_{field.upper()} is malformed: {error}", field=field) from None
    except InvalidRequest as error:
        raise InvalidRequest(error.message, field=f"{field}.{error.field}", hint=error.hint) from None


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
