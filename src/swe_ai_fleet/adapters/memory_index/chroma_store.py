"""A directory of Chroma's, used by one thread of one process."""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from swe_ai_fleet.domain.errors import PreconditionFailed

Result = TypeVar("Result")

_MARK = "fleet-memory.lock"


class Collection(Protocol):
    """What is used of `chromadb.Collection`."""

    def upsert(self, **columns: object) -> None: ...

    def update(self, **columns: object) -> None: ...

    def get(self, **query: object) -> Mapping[str, Any]: ...

    def query(self, **query: object) -> Mapping[str, Any]: ...

    def delete(self, *, ids: Sequence[str]) -> object: ...

    def count(self) -> int: ...


class _Client(Protocol):
    def get_or_create_collection(self, name: str, **options: object) -> Collection: ...

    def list_collections(self) -> Sequence[Any]: ...

    def get_max_batch_size(self) -> int: ...

    def close(self) -> None: ...


class ChromaStore:
    """A directory, open. It is refused where another process has it open, or where something else lies in it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.expanduser()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="memory-chroma")
        self._lock: int | None = None
        self._client: _Client | None = None

    async def __aenter__(self) -> ChromaStore:
        """Raises PreconditionFailed."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._open)
        except BaseException:
            await asyncio.to_thread(self._close)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._close)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do something with collections, behind what was asked for before. Raises PreconditionFailed."""

        def guarded() -> Result:
            with _faults(self._directory):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, guarded)

    def collection(self, name: str, *, space: str = "l2") -> Collection:
        """The collection of that name, made where there is none. For `run` only."""
        assert self._client is not None
        # Filters leave few of those that are near, so more are looked at than Chroma does of itself.
        graph = {"space": space, "ef_search": 500, "ef_construction": 200, "max_neighbors": 32}
        return self._client.get_or_create_collection(name, embedding_function=None, configuration={"hnsw": graph})

    def names(self) -> list[str]:
        """The collections there are. For `run` only."""
        assert self._client is not None
        return [one.name for one in self._client.list_collections()]

    @property
    def batch(self) -> int:
        """How many records go in at once."""
        assert self._client is not None
        return self._client.get_max_batch_size()

    def _open(self) -> None:
        try:
            chromadb = importlib.import_module("chromadb")
        except ImportError:
            raise PreconditionFailed(
                "Chroma is not installed", field="memory_store", hint="pip install 'swe-ai-fleet[chroma]'"
            ) from None
        with _faults(self._directory):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark = self._directory / _MARK
            if not mark.exists() and any(self._directory.iterdir()):
                raise PreconditionFailed(
                    f"{self._directory} holds something else",
                    field="memory_store",
                    hint="name a directory that is empty or does not exist",
                )
            self._lock = os.open(mark, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PreconditionFailed(
                    f"{self._directory} is open in another process",
                    field="memory_store",
                    hint="Chroma's files are for one process; PostgreSQL or the default file serve several",
                ) from None
            # Said outright, since Chroma takes from the environment what is not.
            settings = chromadb.config.Settings(
                anonymized_telemetry=False,
                chroma_otel_collection_endpoint="",
                chroma_otel_granularity=None,
                allow_reset=False,
            )
            self._client = chromadb.PersistentClient(str(self._directory), settings=settings)

    def _close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        client, self._client = self._client, None
        lock, self._lock = self._lock, None
        if client is not None:
            client.close()
        if lock is not None:
            os.close(lock)


@contextmanager
def _faults(directory: Path) -> Generator[None]:
    errors = importlib.import_module("chromadb.errors")
    try:
        yield
    except (errors.ChromaError, OSError) as error:
        raise PreconditionFailed(
            f"{directory} cannot be used: {error}",
            field="memory_store",
            hint="an index of a fleet's memories may be deleted: it is made anew from the log",
        ) from error
