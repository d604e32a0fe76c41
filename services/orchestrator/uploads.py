"""Uploads of repositories: received within limits, checked, and stored."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import tenant
from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.adapters.git_workspace.uploads import UPLOADS
from swe_ai_fleet.domain.errors import InvalidRequest, ResourceExhausted
from swe_ai_fleet.domain.task import UPLOAD, RepoRef
from swe_ai_fleet.ports import BlobStore

MAX_AT_ONCE = 4
IDLE_SECONDS = 60.0
"""The longest time in which a client may send nothing."""
UPLOAD_SECONDS = 3_600.0
_MEDIA_TYPE = "application/x-git-bundle"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


async def _no_quota(_: str, __: int) -> None:
    """Used when there are no storage quotas for tenants."""


@dataclass(kw_only=True)
class Uploads:
    """Carries out UploadRepository.

    Args:
        max_bytes: The largest bundle.
        check_room: Raises ResourceExhausted if so many more bytes exceed a tenant's storage quota.
    """

    workspaces: GitWorkspaceProvider
    blobs: BlobStore
    max_bytes: int
    check_room: Callable[[str, int], Awaitable[object]] = _no_quota
    _receiving: Counter[str] = field(default_factory=Counter[str])
    _unpacking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_AT_ONCE))
    _tenant_locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def receive(self, requests: AsyncIterator[pb.UploadRepositoryRequest]) -> pb.RepoRef:
        """Receive and store a bundle; the answer names it. The same bundle again is the same upload.

        Raises:
            InvalidRequest: It is too large, differs from its header, or is not safe to unpack; names the field.
            ResourceExhausted: There is no room for it, or too many are being received.
            Unavailable: It could not be stored.
        """
        owner = tenant()
        # A tenant without an upload gets one more when the others have taken all places.
        if self._receiving.total() >= MAX_AT_ONCE and (
            self._receiving[owner] or self._receiving.total() >= 2 * MAX_AT_ONCE
        ):
            raise ResourceExhausted(f"{MAX_AT_ONCE} uploads are being received", hint="try again in a moment")
        self._receiving[owner] += 1
        requests = aiter(requests)
        try:
            async with asyncio.timeout(UPLOAD_SECONDS), self.workspaces.receiving() as directory:
                header = await self._header(requests)
                bundle = directory / "bundle"
                with _full_disk_reported():
                    digest, size = await self._receive(requests, bundle, header.size_bytes)
                if header.size_bytes and size != header.size_bytes:
                    reason = f"{size} bytes came of {header.size_bytes}"
                    raise InvalidRequest(reason, field="header.size_bytes", hint="send it again")
                if header.digest and digest != header.digest:
                    raise InvalidRequest("what came has another digest", field="header.digest", hint="send it again")
                await self.check_room(owner, size)
                return await self._store(header, bundle, digest)
        except TimeoutError:
            raise InvalidRequest(
                f"the client sent nothing for {IDLE_SECONDS:g} seconds, or took more than {UPLOAD_SECONDS:g} in all",
                field="chunk",
            ) from None
        finally:
            self._receiving[owner] -= 1

    async def _header(self, requests: AsyncIterator[pb.UploadRepositoryRequest]) -> pb.UploadRepositoryHeader:
        async with asyncio.timeout(IDLE_SECONDS):
            first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "header":
            raise InvalidRequest("the first message has no header", field="header")
        header = first.header
        if header.digest and not _DIGEST.fullmatch(header.digest):
            raise InvalidRequest(
                "not a SHA-256 digest", field="header.digest", hint="64 lower-case hexadecimal digits, or leave it out"
            )
        if header.size_bytes > self.max_bytes:
            raise self._too_large(header.size_bytes, "header.size_bytes")
        return header

    async def _receive(
        self, requests: AsyncIterator[pb.UploadRepositoryRequest], bundle: Path, announced: int
    ) -> tuple[str, int]:
        """Write the chunks to the file; their SHA-256 and size."""
        size, sha256 = 0, hashlib.sha256()
        most = min(announced or self.max_bytes, self.max_bytes)
        with bundle.open("wb") as file:
            while True:
                async with asyncio.timeout(IDLE_SECONDS):
                    request = await anext(requests, None)
                if request is None:
                    return sha256.hexdigest(), size
                if request.WhichOneof("part") != "chunk":
                    raise InvalidRequest("a header comes first, and once", field="header")
                size += len(request.chunk)
                if size > most:
                    if announced and announced <= self.max_bytes:
                        raise InvalidRequest(f"more than the {announced} bytes announced", field="header.size_bytes")
                    raise self._too_large(size, "chunk")
                await asyncio.to_thread(_append, file, sha256.update, request.chunk)

    async def _store(self, header: pb.UploadRepositoryHeader, bundle: Path, digest: str) -> pb.RepoRef:
        repo = RepoRef(location=UPLOAD + digest, ref=header.ref, commit=header.commit, subdirectory=header.subdirectory)

        async def store() -> None:
            data = await asyncio.to_thread(bundle.read_bytes)
            try:
                await self.blobs.put(tenant(), UPLOADS, data, _MEDIA_TYPE)
            except ResourceExhausted as error:
                raise ResourceExhausted(
                    f"there is no room to keep the upload: {error.message}",
                    hint="the operator can raise the limit of the blob store, or wait until old content expires",
                ) from error

        # Git, and then the whole bundle, need memory: a few are unpacked at a time, and one per tenant, which may have
        # to wait for the tenant's CPU slot.
        async with self._tenant_locks[tenant()], self._unpacking:
            with _full_disk_reported():
                commit, branch = await self.workspaces.take(tenant(), bundle, digest, repo, store)
        ref = header.ref or branch
        return pb.RepoRef(
            upload_id=digest,
            ref=ref,
            commit=header.commit or ("" if ref else commit),
            subdirectory=header.subdirectory,
        )

    def _too_large(self, size: int, name: str) -> InvalidRequest:
        return InvalidRequest(
            f"the bundle has {size} bytes or more",
            field=name,
            hint=f"at most {self.max_bytes}; name a URL that the server can clone, or leave large history out",
        )


def _append(file: BinaryIO, update: Callable[[bytes], object], chunk: bytes) -> None:
    file.write(chunk)
    update(chunk)


@contextlib.contextmanager
def _full_disk_reported() -> Generator[None]:
    """Inside, an OSError for a full disk becomes ResourceExhausted."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL_DISK:
            raise
        raise ResourceExhausted("the server's disk is full", hint="ask its operator to make room") from error
