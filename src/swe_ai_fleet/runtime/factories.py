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
from swe_ai_fleet.domain.network import NetworkGrant
from swe_ai_fleet.runtime.sandboxes import make_sandbox
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings, listed


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


def workspace_provider(settings: Settings) -> GitWorkspaceProvider:
    """Repositories, clones and environments of this node."""
    return GitWorkspaceProvider(
        settings.home,
        make_sandbox(settings),
        allowed_roots=tuple(Path(root) for root in settings.repository_roots.split(":") if root),
        allow_local_paths=settings.loopback,
        setup=SetupPolicy(
            network=NetworkGrant(
                hosts=listed(settings.setup_hosts), private_hosts=listed(settings.setup_private_hosts)
            ),
            variables={name: os.environ[name] for name in listed(settings.setup_variables) if name in os.environ},
        ),
        mask=secret_mask(settings),
    )
