"""Logins to NATS for agent hosts: granted when a host starts, for one tenant, while the host lives.

A grant is stored in a bucket without its secret, and renewed by the orchestrator that started the host; without renewal
it expires after ten minutes. The login of a job's container is on the board of jobs until the job has ended. NATS asks
the orchestrators about every login, and ends every connection of a host after a quarter of an hour; the host reconnects
if its login is still valid.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import structlog

from swe_ai_fleet.adapters.jetstream import Issuer, JetStream, NatsLogin
from swe_ai_fleet.adapters.jetstream.nats_client import host_inbox
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed
from swe_ai_fleet.following import in_background
from swe_ai_fleet.ports import KeyValue
from swe_ai_fleet.runtime.installation.nats_accounts import (
    ACCOUNT,
    DENIED_TO_HOSTS,
    HOSTS_BUCKET,
    OneRun,
    hosts_account,
    published_by_hosts,
    subscribed_by_hosts,
)
from swe_ai_fleet.runtime.jobs import JOBS_BUCKET, JobBoard, digest_of
from swe_ai_fleet.settings import Settings

GRANT_SECONDS = 600.0
_KEPT_SECONDS = 60.0
_CONNECTION_SECONDS = 900.0
_ID, _JOB = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]+")

Admit = Callable[[str], Awaitable[None]]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGrant:
    """The tenant of an agent host, and the digest of the secret in its login."""

    tenant: str
    digest: str


@dataclass(kw_only=True)
class HostLogins:
    """Grants and renews the logins of hosts. Made by `open_host_logins`.

    Args:
        admit: Creates the account of a tenant's hosts on a server of our own; None elsewhere.
    """

    store: KeyValue
    admit: Admit | None = None
    _granted: dict[str, HostGrant] = field(default_factory=dict[str, HostGrant])

    async def grant(self, tenant: str) -> str:
        """A login for a host of a tenant, valid until `end`. Raises Unavailable."""
        if self.admit is not None:
            await self.admit(tenant)
        name, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        grant = HostGrant(tenant=tenant, digest=digest_of(secret))
        await self.store.put(name, to_json(grant))
        self._granted[name] = grant
        return f"{name}.{secret}"

    async def end(self, login: str) -> None:
        """Revoke a login; while NATS does not answer, it expires within ten minutes instead."""
        name = login.partition(".")[0]
        if self._granted.pop(name, None) is not None:
            with suppress(FleetError):
                await self.store.delete(name)

    async def keep(self) -> None:
        """Renew the grants until cancelled."""
        while True:
            await asyncio.sleep(_KEPT_SECONDS)
            for name, grant in tuple(self._granted.items()):
                try:
                    if name in self._granted:
                        await self.store.put(name, to_json(grant))
                except FleetError as fault:
                    _log.warning("hosts.grant_not_kept", reason=str(fault))


@asynccontextmanager
async def open_host_logins(
    settings: Settings, log: JetStream, *, admit: Admit | None = None
) -> AsyncGenerator[HostLogins | None]:
    """Grants logins, and answers auth callouts and hosts' requests, until the context ends; None: no logins for hosts.

    With one token for all on NATS, or none, hosts cannot be distinguished from orchestrators and use the fleet's login.

    Raises PreconditionFailed where NATS has accounts, but this process no key that signs hosts' logins.
    """
    if settings.nats_issuer_file is None:
        if settings.nats_nkey_file is not None:
            raise PreconditionFailed(
                "without its key agent hosts cannot log in",
                field="nats_issuer_file",
                hint="run `fleet init` again, set FLEET_NATS_ISSUER_FILE to nats/issuer.nkey, and restart NATS",
            )
        yield None
        return
    file = settings.nats_issuer_file
    current = _issuer(file)

    def issuer() -> Issuer:
        # A rotated key is in the file before NATS is restarted with it.
        nonlocal current
        try:
            current = _issuer(file)
        except PreconditionFailed as fault:
            _log.warning("hosts.issuer_not_read", reason=str(fault))
        return current

    logins = HostLogins(store=await log.bucket(HOSTS_BUCKET, ttl_seconds=GRANT_SECONDS), admit=admit)
    callout = _AuthCallout(
        hosts=logins.store,
        jobs=JobBoard(log.made_bucket(JOBS_BUCKET), log) if settings.executor == "kubernetes" else None,
        token=settings.nats_token if admit is not None else "",
    )
    listening = asyncio.Event()
    work = (log.answer_logins(issuer, callout.authenticate, listening=listening), log.answer_hosts(), logins.keep())
    async with in_background(*work, name="hosts on NATS", fault="agent hosts get no more answers"):
        await listening.wait()
        yield logins


def _issuer(file: Path) -> Issuer:
    try:
        return Issuer(file.read_text())
    except OSError as error:
        raise PreconditionFailed(f"{file} cannot be read: {error.strerror}", field="nats_issuer_file") from error


@dataclass(frozen=True, kw_only=True)
class _AuthCallout:
    """Answers auth callouts of NATS from the bucket of grants; on a server of our own its token grants everything."""

    hosts: KeyValue
    jobs: JobBoard | None
    token: str

    async def authenticate(self, token: str) -> NatsLogin:
        """The login of a token. Raises PreconditionFailed for an unknown token, Unavailable."""
        if self.token and hmac.compare_digest(token.encode(), self.token.encode()):
            return NatsLogin(account=ACCOUNT)
        name, _, rest = token.partition(".")
        secret, _, tenant = rest.partition(".")
        if tenant and self.jobs is not None and _JOB.fullmatch(name):
            job = await self.jobs.authenticate(unquote(tenant), name, secret)
            if job is not None:
                only = OneRun(
                    execution_id=job.execution_id, agent_id=job.agent_id, job_id=job.job_id, run_id=job.run_id
                )
                return _login(name, job.tenant, only)
        elif not tenant and _ID.fullmatch(name):
            entry = await self.hosts.get(name)
            grant = from_json(HostGrant, entry.value) if entry is not None else None
            if grant is not None and hmac.compare_digest(grant.digest, digest_of(secret)):
                return _login(name, grant.tenant)
        raise PreconditionFailed("this login belongs to no agent host")


def _login(name: str, tenant: str, only: OneRun | None = None) -> NatsLogin:
    return NatsLogin(
        account=hosts_account(tenant),
        publishes=published_by_hosts(tenant, only),
        denied=DENIED_TO_HOSTS,
        subscribes=(f"{host_inbox(name)}.>", subscribed_by_hosts(tenant)),
        seconds=_CONNECTION_SECONDS,
    )
