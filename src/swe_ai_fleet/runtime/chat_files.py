"""Chats in files, for use without a fleet: one file a session, replaced whole, one writer at a time."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from swe_ai_fleet.codec import from_json
from swe_ai_fleet.conversations.session import Session
from swe_ai_fleet.conversations.store import KeptSession, encoded, newest_first
from swe_ai_fleet.domain.errors import Fenced, Unavailable


class ChatFiles:
    """A `ChatStore` in a directory that only its owner can read; several processes may use it at once.

    Args:
        directory: Made with the first session.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def get(self, tenant: str, session_id: str) -> KeptSession | None:
        """The session as it was put last; None for an unknown one. Raises Unavailable."""
        return await asyncio.to_thread(self._get, tenant, session_id)

    async def put(self, session: Session, *, revision: int) -> int:
        """Keep it on a revision (0: only where there is none); the new one. Raises Fenced, Unavailable."""
        return await asyncio.to_thread(self._put, session, revision)

    async def delete(self, tenant: str, session_id: str) -> None:
        """Forget it. Raises Unavailable."""
        await asyncio.to_thread(self._delete, tenant, session_id)

    async def listed(self, tenant: str) -> tuple[Session, ...]:
        """The cards of all of a tenant's, the one that was spoken to last first. Raises Unavailable."""
        return await asyncio.to_thread(self._listed, tenant)

    def _get(self, tenant: str, session_id: str) -> KeptSession | None:
        with self._locked():
            return self._read(self._path(tenant, session_id))

    def _put(self, session: Session, revision: int) -> int:
        path = self._path(session.tenant, session.session_id)
        with self._locked():
            known = self._read(path)
            if (known.revision if known else 0) != revision:
                raise Fenced(f"the session {session.session_id} was changed by somebody else")
            draft = path.with_suffix(".new")
            # Never one that a session had which was forgotten: whoever still works on that one must not replace this.
            made = max(time.time_ns(), revision + 1)
            head = json.dumps({"revision": made}).encode()
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(head + b"\n" + encoded(session))
            draft.replace(path)
        return made

    def _delete(self, tenant: str, session_id: str) -> None:
        with self._locked():
            self._path(tenant, session_id).unlink(missing_ok=True)

    def _listed(self, tenant: str) -> tuple[Session, ...]:
        with self._locked():
            found = [self._read(path) for path in sorted(self._directory.glob("*.chat"))]
        return newest_first(kept.session.card for kept in found if kept is not None and kept.session.tenant == tenant)

    def _read(self, path: Path) -> KeptSession | None:
        try:
            head, _, body = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        try:
            return KeptSession(session=from_json(Session, body), revision=int(json.loads(head)["revision"]))
        except (ValueError, KeyError, TypeError) as fault:
            raise Unavailable(f"the file {path.name} is no session any more: {fault}"[:300]) from fault

    @contextmanager
    def _locked(self) -> Generator[None]:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (self._directory / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as fault:
            raise Unavailable(f"the chats cannot be kept: {fault}", field="home") from fault

    def _path(self, tenant: str, session_id: str) -> Path:
        # Names of files may not tell capital letters from small ones.
        digest = hashlib.sha256(f"{tenant}\x1f{session_id}".encode()).hexdigest()[:40]
        return self._directory / f"{digest}.chat"
