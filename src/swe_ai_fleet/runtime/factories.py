"""From settings to the parts: each is made here and nowhere else."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider, SetupPolicy
from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.adapters.model_providers import provider_endpoint
from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.network import NetworkGrant, NetworkRules
from swe_ai_fleet.sandbox import CpuSlots, Rung, Sandbox, SandboxPolicy
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.catalogue import ToolAccess
from swe_ai_fleet.tools.db.connections import secret_values
from swe_ai_fleet.tools.secrets import Secrets

SLOTS_PER_CPU = 2


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
    rung = Rung.NONE if settings.sandbox == "none" else Rung.BUBBLEWRAP
    policy = SandboxPolicy(rung=rung, max_processes=settings.max_processes)
    return Sandbox(policy, CpuSlots(settings.home / "slots", count))


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


def network_rules(settings: Settings) -> NetworkRules:
    """What tools and checks of a task may reach. Raises InvalidRequest for a setting that holds no host pattern."""
    default, private = _listed(settings.tool_hosts), _listed(settings.tool_private_hosts)
    ceiling = NetworkGrant(hosts=(*_listed(settings.grantable_hosts), *default), private_hosts=private)
    return NetworkRules(default=ceiling.narrowed(default, field="tool_hosts"), ceiling=ceiling)


def tool_access(settings: Settings) -> ToolAccess:
    """The services that tools may use beside their workspace."""
    return ToolAccess(databases=settings.databases, writable_databases=_listed(settings.writable_databases))


def secret_mask(settings: Settings) -> Secrets:
    """The mask of everything that leaves the process."""
    return Secrets((*settings.secrets, *secret_values(settings.databases)))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
