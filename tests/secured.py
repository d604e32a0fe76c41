"""A secured installation for tests, and the NATS server that it configures."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.adapters.jetstream import NatsCredentials
from swe_ai_fleet.runtime.installation.installing import install
from swe_ai_fleet.runtime.installation.layout import InstallationLayout

_RELOADED, _READY = "Reloaded server configuration", "Server is ready"


@dataclass(slots=True, kw_only=True)
class SecuredNats:
    """A server that runs with the accounts of an installation; `tokens` are those of the tenants' administrators."""

    layout: InstallationLayout
    url: str
    tokens: dict[str, str]
    process: asyncio.subprocess.Process

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.layout.directory / "nats.log"

    async def reloaded(self) -> None:
        """Have it reload, as `nats-server --signal reload` does, and wait until it has."""
        seen = self.log.read_text().count(_RELOADED)
        self.process.send_signal(signal.SIGHUP)
        await _says(self.log, _RELOADED, seen + 1, self.process)

    async def restart(self) -> None:
        """End the server, and start it anew at the same place."""
        await self.end()
        self.process = await _started(self.layout)

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.terminate()
        await self.process.wait()

    def credentials(self, user: str) -> NatsCredentials:
        """How a user of it logs in."""
        return NatsCredentials(nkey=str(self.layout.nkey(user)), ca=str(self.layout.authority))


@asynccontextmanager
async def secured_nats(directory: Path, tenants: Sequence[str]) -> AsyncIterator[SecuredNats]:
    """Install into a directory and serve NATS from it until the context ends."""
    listen = f"127.0.0.1:{free_port()}"
    done = await asyncio.to_thread(install, directory, tenants=tenants, nats_listen=listen)
    layout = InstallationLayout(directory=directory)
    process = await _started(layout)
    running = SecuredNats(layout=layout, url=f"tls://{listen}", tokens=done.tokens, process=process)
    try:
        yield running
    finally:
        await running.end()


async def _started(layout: InstallationLayout) -> asyncio.subprocess.Process:
    binary, said = Path(sys.executable).with_name("nats-server"), layout.directory / "nats.log"
    with said.open("a+") as log:
        log.seek(0)
        lives = log.read().count(_READY)
        process = await asyncio.create_subprocess_exec(
            str(binary), "--config", str(layout.server), stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL
        )
    try:
        await _says(said, _READY, lives + 1, process)
    except BaseException:
        process.kill()
        raise
    return process


async def _says(log: Path, text: str, times: int, process: asyncio.subprocess.Process) -> None:
    """Wait until the server has said something so often."""
    async with asyncio.timeout(20):
        while log.read_text().count(text) < times:
            assert process.returncode is None, "nats-server ended"
            await asyncio.sleep(0.02)


def free_port() -> int:
    """A port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
