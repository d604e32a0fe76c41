"""The board of jobs: containers look up theirs there, and each job's outcome stands once."""

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
"""Longer than the longest job may take."""
MAX_INLINE_BYTES = 256 * 1024
_JSON = "application/json"
_HERE = "_here"
_LOOK_SECONDS = 30.0


class JobBoard:
    """Jobs by their id: what they are, which commit they got, whether they are called off, how they ended."""

    def __init__(self, store: KeyValue, blobs: BlobStore) -> None:
        self._store = store
        self._blobs = blobs
        self._listeners: dict[str, list[asyncio.Event]] = {}

    async def post(self, job: Job) -> None:
        """Put a job where its container finds it. Raises ResourceExhausted, Unavailable."""
        await self._store.put(_key(job.tenant, job.job_id, "job"), to_json(job))

    async def job(self, tenant: str, job_id: str) -> Job | None:
        """The job of an id; None where there is none any more. Raises Unavailable."""
        stored = await self._store.get(_key(tenant, job_id, "job"))
        return from_json(Job, stored.value) if stored else None

    async def assignment(self, job: Job) -> Assignment[Any]:
        """What a job is to do. Raises NotFound, Unavailable, ValueError for what is no such assignment."""
        if job.blob is not None:
            return from_json(ASSIGNMENT_TYPES[job.kind], await self._blobs.get(job.blob))
        return from_plain(ASSIGNMENT_TYPES[job.kind], dict(job.errand))

    async def pin(self, job: Job, repository: PinnedRepository) -> None:
        """Tell which commit a job works on, where its message did not say. Raises Unavailable."""
        await self._store.put(_key(job.tenant, job.run_id, "pinned"), to_json(repository))

    async def pinned(self, job: Job) -> PinnedRepository | None:
        """The commit that the first container of a run resolved; later ones work on the same. Raises Unavailable."""
        stored = await self._store.get(_key(job.tenant, job.run_id, "pinned"))
        return from_json(PinnedRepository, stored.value) if stored else None

    async def let_in(self, job: Job) -> str:
        """A login to NATS for the containers of a job, until `shut_out` or its outcome. Raises Unavailable."""
        secret = secrets.token_urlsafe(32)
        await self._store.put(_key(job.tenant, job.job_id, "login"), digest_of(secret).encode())
        return f"{job.job_id}.{secret}.{quote(job.tenant, safe='')}"

    async def shut_out(self, job: Job) -> None:
        """Revoke the login of a job's containers. Raises Unavailable."""
        await self._store.delete(_key(job.tenant, job.job_id, "login"))

    async def logging_in(self, tenant: str, job_id: str, secret: str) -> Job | None:
        """The job whose container knows a secret; None where there is none that has not ended. Raises Unavailable."""
        stored = await self._store.get(_key(tenant, job_id, "login"))
        if stored is None or not hmac.compare_digest(stored.value, digest_of(secret).encode()):
            return None
        ended = await self.outcome(tenant, job_id) is not None or await self.called_off(tenant, job_id)
        return None if ended else await self.job(tenant, job_id)

    async def settle(self, job: Job, outcome: JobOutcome) -> bool:
        """Store how a job ended; False where that stands already. Raises ResourceExhausted, Unavailable."""
        if len(outcome.value) > MAX_INLINE_BYTES:
            blob = await self._blobs.put(job.tenant, job.execution_id, outcome.value.encode(), _JSON)
            outcome = JobOutcome(blob=blob, reason=outcome.reason)
        with suppress(Fenced):
            await self._store.put(_key(job.tenant, job.job_id, "outcome"), to_json(outcome), revision=0)
            return True
        return False

    async def outcome(self, tenant: str, job_id: str) -> JobOutcome | None:
        """How a job ended; None where it has not. Raises Unavailable."""
        stored = await self._store.get(_key(tenant, job_id, "outcome"))
        return from_json(JobOutcome, stored.value) if stored else None

    async def value(self, outcome: JobOutcome) -> bytes:
        """The JSON that a job gave. Raises the `FleetError` that it ended with, NotFound, Unavailable."""
        if outcome.fault:
            raise fault_of(outcome)
        return await self._blobs.get(outcome.blob) if outcome.blob is not None else outcome.value.encode()

    async def call_off(self, tenant: str, job_id: str) -> None:
        """Ask the runner of a job to cancel it. Raises Unavailable."""
        await self._store.put(_key(tenant, job_id, "stop"), b"{}")

    async def called_off(self, tenant: str, job_id: str) -> bool:
        """Whether a job is to be cancelled. Raises Unavailable."""
        return await self._store.get(_key(tenant, job_id, "stop")) is not None

    async def settled(self, tenant: str, job_id: str) -> JobOutcome:
        """Wait for how a job ends; needs `watching`. Raises Unavailable."""
        with self._listening(_key(tenant, job_id, "outcome")) as signal:
            while (outcome := await self.outcome(tenant, job_id)) is None:
                await _wait_for(signal)
        return outcome

    async def stopped(self, tenant: str, job_id: str) -> None:
        """Wait until a job is to be ended; needs `watching`. Raises Unavailable."""
        with self._listening(_key(tenant, job_id, "stop")) as signal:
            while not await self.called_off(tenant, job_id):
                await _wait_for(signal)

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[JobBoard]:
        """Inside, waiting calls learn of what other processes put here. Raises Unavailable."""
        # What was put before is looked up; only what comes from here on is to be heard of.
        first = await self._store.put(_HERE, b"")
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
    """Wait for word of a key; a look now and then is what a lost word costs."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LOOK_SECONDS):
            await signal.wait()
    signal.clear()


def fault_of(outcome: JobOutcome) -> FleetError:
    """The fault that a job ended with, as the exception it was."""
    kind = getattr(errors, outcome.fault, None)
    if not isinstance(kind, type) or not issubclass(kind, FleetError):
        kind = InternalFault
    return kind(outcome.message, field=outcome.field, hint=outcome.hint)


def digest_of(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def tenant_token(tenant: str) -> str:
    """What the keys of a tenant's jobs begin with."""
    # Of what stands in a quoted name only these are no letters of a key.
    return quote(tenant, safe="").translate({ord("%"): "=", ord("."): "=2E", ord("~"): "=7E"})


def _key(tenant: str, name: str, part: str) -> str:
    return f"{tenant_token(tenant)}.{name}.{part}"
