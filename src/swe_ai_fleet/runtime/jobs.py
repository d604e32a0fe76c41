"""The board of jobs: containers read their jobs there, and each job's outcome is stored once."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from urllib.parse import quote

from swe_ai_fleet.codec import from_json, from_plain, to_json
from swe_ai_fleet.domain import errors
from swe_ai_fleet.domain.assignment import ASSIGNMENT_TYPES, Assignment
from swe_ai_fleet.domain.errors import Fenced, FleetError, InternalFault
from swe_ai_fleet.domain.job import Job, JobOutcome
from swe_ai_fleet.domain.task import PinnedRepository
from swe_ai_fleet.following import Follower
from swe_ai_fleet.ports import BlobStore, KeyValue, KeyValueChange

JOBS_BUCKET = "agent-jobs"
JOBS_KEPT_SECONDS = 8 * 86_400.0
"""Longer than the longest job."""
MAX_INLINE_BYTES = 256 * 1024
_JSON = "application/json"
_START_KEY = "_here"
_LOOK_SECONDS = 30.0


class JobBoard:
    """Jobs by their id: the job, its commit, whether it is to stop, its outcome."""

    def __init__(self, store: KeyValue, blobs: BlobStore) -> None:
        self._store = store
        self._blobs = blobs
        self._listeners: dict[str, list[asyncio.Event]] = {}

    async def post(self, job: Job) -> None:
        """Store a job for its container. Raises ResourceExhausted, Unavailable."""
        await self._store.put(_key(job.tenant, job.job_id, "job"), to_json(job))

    async def job(self, tenant: str, job_id: str) -> Job | None:
        """The job with an id; None once it is gone. Raises Unavailable."""
        stored = await self._store.get(_key(tenant, job_id, "job"))
        return from_json(Job, stored.value) if stored else None

    async def assignment(self, job: Job) -> Assignment[Any]:
        """The assignment of a job. Raises NotFound, Unavailable, ValueError for a malformed one."""
        if job.blob is not None:
            return from_json(ASSIGNMENT_TYPES[job.kind], await self._blobs.get(job.blob))
        return from_plain(ASSIGNMENT_TYPES[job.kind], dict(job.errand))

    async def pin(self, job: Job, repository: PinnedRepository) -> None:
        """Store the commit that a job works on, for jobs that come without one. Raises Unavailable."""
        await self._store.put(_key(job.tenant, job.run_id, "pinned"), to_json(repository))

    async def pinned(self, job: Job) -> PinnedRepository | None:
        """The commit that the first container of a run resolved, for the later ones. Raises Unavailable."""
        stored = await self._store.get(_key(job.tenant, job.run_id, "pinned"))
        return from_json(PinnedRepository, stored.value) if stored else None

    async def grant_login(self, job: Job) -> str:
        """A login to NATS for the containers of a job, until `revoke_login` or its outcome. Raises Unavailable."""
        secret = secrets.token_urlsafe(32)
        await self._store.put(_key(job.tenant, job.job_id, "login"), digest_of(secret).encode())
        return f"{job.job_id}.{secret}.{quote(job.tenant, safe='')}"

    async def revoke_login(self, job: Job) -> None:
        """Revoke the login of a job's containers. Raises Unavailable."""
        await self._store.delete(_key(job.tenant, job.job_id, "login"))

    async def authenticate(self, tenant: str, job_id: str, secret: str) -> Job | None:
        """The unfinished job whose login has this secret; None if there is none. Raises Unavailable."""
        stored = await self._store.get(_key(tenant, job_id, "login"))
        if stored is None or not hmac.compare_digest(stored.value, digest_of(secret).encode()):
            return None
        ended = await self.outcome(tenant, job_id) is not None or await self.stop_requested(tenant, job_id)
        return None if ended else await self.job(tenant, job_id)

    async def settle(self, job: Job, outcome: JobOutcome) -> bool:
        """Store a job's outcome; False where it already has one. Raises ResourceExhausted, Unavailable."""
        if len(outcome.value) > MAX_INLINE_BYTES:
            blob = await self._blobs.put(job.tenant, job.execution_id, outcome.value.encode(), _JSON)
            outcome = JobOutcome(blob=blob, reason=outcome.reason)
        with suppress(Fenced):
            await self._store.put(_key(job.tenant, job.job_id, "outcome"), to_json(outcome), revision=0)
            return True
        return False

    async def outcome(self, tenant: str, job_id: str) -> JobOutcome | None:
        """A job's outcome; None while it has none. Raises Unavailable."""
        stored = await self._store.get(_key(tenant, job_id, "outcome"))
        return from_json(JobOutcome, stored.value) if stored else None

    async def value(self, outcome: JobOutcome) -> bytes:
        """The JSON of a job's result. Raises the `FleetError` that it ended with, NotFound, Unavailable."""
        if outcome.fault:
            raise fault_of(outcome)
        return await self._blobs.get(outcome.blob) if outcome.blob is not None else outcome.value.encode()

    async def request_stop(self, tenant: str, job_id: str) -> None:
        """Ask the runner of a job to cancel it. Raises Unavailable."""
        await self._store.put(_key(tenant, job_id, "stop"), b"{}")

    async def stop_requested(self, tenant: str, job_id: str) -> bool:
        """Whether a job is to be cancelled. Raises Unavailable."""
        return await self._store.get(_key(tenant, job_id, "stop")) is not None

    async def settled(self, tenant: str, job_id: str) -> JobOutcome:
        """Wait for a job's outcome, inside `watching`. Raises Unavailable."""
        with self._listening(_key(tenant, job_id, "outcome")) as signal:
            while (outcome := await self.outcome(tenant, job_id)) is None:
                await _wait_for(signal)
        return outcome

    async def stopped(self, tenant: str, job_id: str) -> None:
        """Wait until a job is to be cancelled, inside `watching`. Raises Unavailable."""
        with self._listening(_key(tenant, job_id, "stop")) as signal:
            while not await self.stop_requested(tenant, job_id):
                await _wait_for(signal)

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[JobBoard]:
        """A context in which waiting calls are woken by other processes' changes. Raises Unavailable."""
        # Waiting calls read earlier values themselves, so only later changes are followed.
        first = await self._store.put(_START_KEY, b"")
        follower = Follower[KeyValueChange](
            "the board of jobs",
            lambda start: self._store.changes(from_revision=max(start, first), follow=True),
            self._wake,
            hint="restart this process",
        )
        follower.begin()
        try:
            yield self
        finally:
            await follower.stop()

    @contextmanager
    def _listening(self, key: str) -> Generator[asyncio.Event]:
        signal = asyncio.Event()
        self._listeners.setdefault(key, []).append(signal)
        try:
            yield signal
        finally:
            self._listeners[key].remove(signal)
            if not self._listeners[key]:
                del self._listeners[key]

    def _wake(self, change: KeyValueChange) -> int:
        for signal in self._listeners.get(change.key, ()):
            signal.set()
        return change.revision


async def _wait_for(signal: asyncio.Event) -> None:
    """Wait for a key's signal, with a timeout in case a change is missed."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LOOK_SECONDS):
            await signal.wait()
    signal.clear()


def fault_of(outcome: JobOutcome) -> FleetError:
    """The fault that a job ended with, as an exception."""
    kind = getattr(errors, outcome.fault, None)
    if not isinstance(kind, type) or not issubclass(kind, FleetError):
        kind = InternalFault
    return kind(outcome.message, field=outcome.field, hint=outcome.hint)


def digest_of(secret: str) -> str:
    """The digest that is stored in place of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def tenant_token(tenant: str) -> str:
    """The first token of the keys of a tenant's jobs."""
    # Of the characters in a quoted name, keys may contain all but these.
    return quote(tenant, safe="").translate({ord("%"): "=", ord("."): "=2E", ord("~"): "=7E"})


def _key(tenant: str, name: str, part: str) -> str:
    return f"{tenant_token(tenant)}.{name}.{part}"
