"""Factories that make the parts of a process from settings: models, admission, the log, workspaces."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from swe_ai_fleet.adapters.git_workspace import (
    TENANT,
    Ages,
    CloneBounds,
    GitWorkspaceProvider,
    ImageLimits,
    ImageRules,
    RegistryRules,
    SetupPolicy,
    mounted_credentials,
)
from swe_ai_fleet.adapters.jetstream import TIMEOUT_SECONDS, JetStream, NatsCredentials, StreamSettings
from swe_ai_fleet.adapters.model_pool import (
    CallQuota,
    Fault,
    LeasedAdmission,
    MemoryLedger,
    ModelPool,
    PoolMember,
    PoolRules,
    vllm_load,
)
from swe_ai_fleet.adapters.model_pool.ledger import Demand, Grant, Ledger
from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.adapters.openai_model.faults import public_url, pushback
from swe_ai_fleet.domain.command import HostPattern, NetworkGrant
from swe_ai_fleet.domain.errors import InvalidRequest, ModelError
from swe_ai_fleet.following import in_background
from swe_ai_fleet.ports import BlobStore, KnownRecipes
from swe_ai_fleet.runtime.model_servers import LOOK_SECONDS, ModelEndpoint, ModelServers, model_endpoints
from swe_ai_fleet.runtime.tool_services import make_sandbox, secret_mask
from swe_ai_fleet.settings import Settings, listed
from swe_ai_fleet.telemetry import own_telemetry

DAY_SECONDS = 86_400.0
_log = structlog.get_logger(__name__)


def model_admission(settings: Settings) -> LeasedAdmission | None:
    """The fleet's limits on model calls for this process; None where settings have none."""
    quota = CallQuota(max_in_flight=settings.model_max_in_flight, tokens_per_minute=settings.model_tokens_per_minute)
    return LeasedAdmission(SharedLedger(), quota) if quota != CallQuota() else None


class SharedLedger:
    """The fleet's ledger if this process is part of a Ray cluster, else one of its own.

    It is chosen at the first call, since a server opens its model before it joins its cluster.
    """

    def __init__(self) -> None:
        self._ledger: Ledger | None = None

    async def renew(self, demand: Demand, quota: CallQuota) -> Grant:
        if self._ledger is None:
            self._ledger = _ray_ledger() or MemoryLedger()
        return await self._ledger.renew(demand, quota)


def _ray_ledger() -> Ledger | None:
    # A process without Ray is in no cluster, and must not import Ray to find out.
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    from swe_ai_fleet.runtime.ray_admission import RayLedger

    return RayLedger()


def other_model(
    settings: Settings, *, model: str = "", url: str = "", api_key: str = "", record_tokens: str = ""
) -> Settings:
    """Settings of another model; empty arguments change nothing, but the key is not sent to another address.

    Raises InvalidRequest where `record_tokens` is neither `true` nor `false`.
    """
    if record_tokens not in ("", "true", "false"):
        raise InvalidRequest(
            f"record_tokens is {record_tokens[:64]!r}", field="model_profiles", hint='"true" or "false"'
        )
    overrides = {"model": model, "model_url": url, "model_api_key": api_key}
    update: dict[str, str | bool] = {name: value for name, value in overrides.items() if value}
    if record_tokens:
        update["model_record_tokens"] = record_tokens == "true"
    chosen = settings.model_copy(update=update)
    known_urls = {public_url(endpoint.base_url) for endpoint in model_endpoints(settings)}
    if api_key or all(public_url(endpoint.base_url) in known_urls for endpoint in model_endpoints(chosen)):
        return chosen
    return chosen.model_copy(update={"model_api_key": ""})


@asynccontextmanager
async def open_model(
    settings: Settings, *, admission: LeasedAdmission | None = None, look_every: float = LOOK_SECONDS
) -> AsyncGenerator[ModelPool]:
    """The model servers as one model, until the context ends.

    `admission` has the limits that several models of a process share; without it, they are this model's own, from the
    settings. Addresses that list servers are looked up every `look_every` seconds. Raises ModelRejected for a malformed
    URL, InvalidRequest for a malformed address of such a list.
    """
    servers, members = ModelServers(settings=settings), dict[ModelEndpoint, PoolMember]()

    async def look() -> bool:
        endpoints = await servers.look()
        clients = {endpoint: model_client(endpoint, settings) for endpoint in endpoints if endpoint not in members}
        departed = members.keys() - endpoints
        for endpoint in departed:
            del members[endpoint]
        for endpoint, client in clients.items():
            await client.__aenter__()
            name, load = public_url(endpoint.base_url), partial(vllm_load, client.metrics)
            members[endpoint] = PoolMember(name=name, model=client, load=load, close=client.__aexit__)
        return bool(departed or clients)

    async def follow(pool: ModelPool) -> None:
        while True:
            await asyncio.sleep(look_every)
            try:
                if await look():
                    pool.set_members(tuple(members.values()))
            except ModelError as error:
                _log.warning("model.server_unusable", reason=str(error))

    async with AsyncExitStack() as stack:
        await look()
        own = model_admission(settings) if admission is None else None
        if own is not None:
            admission = await stack.enter_async_context(own)
        pool = await stack.enter_async_context(
            ModelPool(
                tuple(members.values()),
                read_fault=lambda error: Fault.of(*pushback(error)),
                admission=admission,
                rules=PoolRules(timeout=settings.model_patience_seconds),
                source=servers.source,
            )
        )
        if servers.source:
            await stack.enter_async_context(in_background(follow(pool), name="model servers"))
        yield pool


def model_client(endpoint: ModelEndpoint, settings: Settings) -> OpenAIChatModel:
    """The client of one model server. It does not retry; its caller does."""
    if endpoint.note:
        _log.warning("model.provider_not_asked", server=public_url(endpoint.base_url), reason=endpoint.note)
    return OpenAIChatModel(
        base_url=endpoint.base_url,
        model=endpoint.model,
        api_key=endpoint.api_key,
        timeout_seconds=settings.model_timeout_seconds,
        session_headers=listed(settings.model_session_headers),
    )


def connect_log(
    settings: Settings, *, name: str, timeout: float = TIMEOUT_SECONDS, waits: float = 0.0
) -> AbstractAsyncContextManager[JetStream]:
    """A connection to the event log, the blob store and the result bus.

    Calls are retried for `timeout` seconds, the first connection for `waits` seconds.
    """
    credentials = nats_credentials(settings)
    streams = StreamSettings(
        replicas=settings.stream_replicas,
        max_age_seconds=settings.event_days * DAY_SECONDS,
        max_event_bytes=settings.event_bytes,
        max_result_bytes=settings.result_bytes,
        max_blob_bytes=settings.blob_bytes,
    )
    return JetStream.connect(
        settings.nats_url,
        credentials=credentials,
        name=name,
        settings=streams,
        timeout=timeout,
        waits=waits,
        stamp=own_telemetry().stamp,
    )


def nats_credentials(settings: Settings) -> NatsCredentials:
    """This process's login to NATS: a host's login if there is one, else an nkey, else a token."""
    host = settings.nats_login
    nkey = "" if host else str(settings.nats_nkey_file or "")
    return NatsCredentials(
        token="" if nkey or host else settings.nats_token,
        nkey=nkey,
        host=host,
        ca=str(settings.nats_ca or ""),
        cert=str(settings.nats_cert or ""),
        key=str(settings.nats_key or ""),
    )


def workspace_provider(
    settings: Settings, blobs: BlobStore | None = None, recipes: KnownRecipes | None = None
) -> GitWorkspaceProvider:
    """Repositories, clones and environments of this node.

    `blobs` has the commits that other nodes made, `recipes` the results of environment runs.
    """
    roots = repository_roots(settings)
    return GitWorkspaceProvider(
        settings.home,
        make_sandbox(settings),
        allowed_roots=roots,
        allow_local_paths=bool(roots),
        hosts=("*", *git_private_hosts(settings)),
        credentials=mounted_credentials(settings.git_credentials, by_tenant=True) if settings.git_credentials else None,
        known_hosts=settings.git_known_hosts,
        setup=setup_policy(settings),
        mask=secret_mask(settings),
        fetch=blobs.get if blobs is not None else None,
        recipes=recipes,
        images=image_rules(settings),
        ages=Ages(seed=_seed_seconds(settings)),
        bounds=CloneBounds(checkpoint_bytes=settings.checkpoint_bytes, tenant_disk_bytes=settings.tenant_disk_bytes),
    )


@asynccontextmanager
async def housekeeping(workspaces: GitWorkspaceProvider, settings: Settings) -> AsyncGenerator[None]:
    """Removes unneeded files from the node: now, and periodically until the context ends."""
    seconds = _seed_seconds(settings)
    pause = min(max(seconds / 10, 5.0), 3_600.0) if seconds else 3_600.0

    async def reap() -> None:
        while True:
            await asyncio.sleep(pause)
            try:
                await workspaces.reap()
            except OSError as error:
                _log.warning("housekeeping.failed", reason=str(error))

    await workspaces.reap()
    async with in_background(reap(), name="housekeeping"):
        yield


def repository_roots(settings: Settings) -> tuple[Path, ...]:
    """The directories whose repositories may be named by path; none: paths are refused.

    Raises InvalidRequest for a root that all tenants would share.
    """
    roots = tuple(Path(root) for root in settings.repository_roots.split(":") if root)
    if settings.access_file is None:
        return roots or ((Path("/"),) if settings.alone else ())
    for root in roots:
        if TENANT not in str(root):
            raise InvalidRequest(
                f"every tenant could use the repositories below {root}",
                field="repository_roots",
                hint=f"use a directory for each tenant: {root / TENANT}",
            )
    return roots


def git_private_hosts(settings: Settings) -> tuple[str, ...]:
    """Hosts at private addresses whose repositories may be cloned. Raises InvalidRequest for a pattern."""
    patterns = listed(settings.git_private_hosts)
    for text in patterns:
        if not HostPattern.parse(text, field="git_private_hosts").exact:
            raise InvalidRequest(
                f"{text[:80]!r} matches more than one host", field="git_private_hosts", hint="list each host by itself"
            )
    return patterns


def setup_policy(settings: Settings) -> SetupPolicy:
    """The network and the environment variables of set-up commands."""
    return SetupPolicy(
        network=NetworkGrant(hosts=listed(settings.setup_hosts), private_hosts=listed(settings.setup_private_hosts)),
        variables={name: os.environ[name] for name in listed(settings.setup_variables) if name in os.environ},
    )


def image_rules(settings: Settings) -> ImageRules:
    """Where container images may come from, and how large they may be."""
    directory = settings.image_credentials
    return ImageRules(
        registries=RegistryRules(
            allowed=listed(settings.image_registries),
            credentials=mounted_credentials(directory, by_tenant=True) if directory else None,
        ),
        folders=tuple(Path(folder) for folder in settings.image_folders.split(":") if folder),
        engine=settings.image_engine,
        pulled_by_cluster=settings.executor == "kubernetes" and settings.sandbox == "landlock",
        limits=ImageLimits(unpacked_bytes=settings.image_bytes),
    )


def _seed_seconds(settings: Settings) -> float:
    """Seconds for which an unused commit's history stays on a node: no longer than the events that mention it."""
    seconds = settings.event_days * DAY_SECONDS
    return min(seconds, Ages().seed) if seconds else Ages().seed
