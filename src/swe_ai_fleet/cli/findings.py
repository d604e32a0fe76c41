"""Findings of `fleet doctor`: the results of testing the parts of an installation.

Parts of this machine are the free disk space, open files, ports.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import socket
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from swe_ai_fleet.cli.screen import CommandFault, Exit
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.runtime.model_servers import ModelServers, shown_url
from swe_ai_fleet.settings import Settings, on_loopback

LEAST_FREE_BYTES = 1 << 30
LEAST_FREE_FILES = 20_000
"""Files in a clone of a medium-sized repository with its environment."""
FILES_EACH = 8
"""Open files of one agent's session. The process itself needs `_FILES_BESIDE` more."""
_FILES_BESIDE = 512
PROBE_SECONDS = 15.0
_REACH_SECONDS = 3.0
_FIRST_LOOK_SECONDS = 0.8
_OLDEST_GIT = (2, 38)
"""The first version whose `merge-tree` writes trees, with which results are merged without a work tree."""
VERSION = re.compile(r"\d+(?:\.\d+)+")


class Health(StrEnum):
    """`absent` is for an optional part that is missing."""

    OK = "ok"
    ABSENT = "absent"
    FAULT = "fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """The result of testing one part. `cause` says what was found, `mend` how to fix a fault."""

    part: str
    state: Health
    version: str = ""
    cause: str = ""
    mend: str = ""


def ok(part: str, cause: str, mend: str = "", *, version: str = "") -> DoctorFinding:
    return DoctorFinding(part=part, state=Health.OK, version=version, cause=cause, mend=mend)


def absent(part: str, cause: str, mend: str = "") -> DoctorFinding:
    return DoctorFinding(part=part, state=Health.ABSENT, cause=cause, mend=mend)


def broken(part: str, cause: str, mend: str = "", *, version: str = "") -> DoctorFinding:
    return DoctorFinding(part=part, state=Health.FAULT, version=version, cause=cause, mend=mend)


def faulty(
    part: str, error: FleetError | TimeoutError, mend: str = "", *, version: str = "", seconds: float = 0.0
) -> DoctorFinding:
    """The finding for a part that raised, or did not answer within `seconds`; `mend` is used where it has no hint."""
    if isinstance(error, FleetError):
        return broken(part, error.message, error.hint or mend, version=version)
    return broken(part, f"no answer within {seconds:g} seconds", mend, version=version)


async def output(*argv: str, seconds: float) -> tuple[int, str]:
    """(exit code, output) of a program; 124 when it took too long."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        return 126, str(error)
    try:
        async with asyncio.timeout(seconds):
            stdout, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return 124, f"no answer within {seconds:g} seconds"
    return process.returncode or 0, stdout.decode("utf-8", "replace")


async def git() -> DoctorFinding:
    return await program("git", required=True, mend="install git 2.38 or newer", oldest=_OLDEST_GIT)


async def program(name: str, *, required: bool, mend: str, oldest: tuple[int, ...] = ()) -> DoctorFinding:
    beside = Path(sys.executable).with_name(name)
    path = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
    wrong = Health.FAULT if required else Health.ABSENT
    if path is None:
        return DoctorFinding(part=name, state=wrong, cause="not on PATH", mend=mend)
    code, stdout = await output(path, "--version", seconds=PROBE_SECONDS)
    version = VERSION.search(stdout)
    if code != 0:
        return DoctorFinding(part=name, state=wrong, cause=f"{path} --version ended with {code}", mend=mend)
    if oldest and version and tuple(int(part) for part in version[0].split(".")[: len(oldest)]) < oldest:
        return DoctorFinding(part=name, state=wrong, version=version[0], cause=f"{path} is too old", mend=mend)
    return ok(name, path, version=version[0] if version else "")


async def unreached(address: str, *, seconds: float = _REACH_SECONDS) -> str:
    """Why a connection to `host:port` fails; empty where it succeeds, or for a malformed address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return ""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        return f"no answer within {seconds:g} seconds"
    except OSError as error:
        return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    writer.close()
    return ""


async def silent_models(settings: Settings) -> list[DoctorFinding]:
    """A fault for each model server that refuses connections, found in under a second."""
    listing = ModelServers(settings=settings)
    servers = await listing.look()
    if not servers:
        return [broken("model server", f"none is found at {listing.source}", "start one there, or set FLEET_MODEL_URL")]
    faults = await asyncio.gather(*(_silent(server.base_url) for server in servers))
    mend = "start it, or set FLEET_MODEL_URL and FLEET_MODEL"
    return [
        broken("model server", f"{shown_url(server)} {fault}", mend)
        for server, fault in zip(servers, faults, strict=True)
        if fault
    ]


async def _silent(base_url: str) -> str:
    """Why a connection to a URL's host fails; empty where it succeeds."""
    url = urlsplit(base_url)
    try:
        port = url.port or {"http": 80, "https": 443}.get(url.scheme, 0)
    except ValueError:
        port = 0
    if not url.hostname or not port:
        return "is not an HTTP URL"
    fault = await unreached(f"[{url.hostname}]:{port}", seconds=_FIRST_LOOK_SECONDS)
    return f"does not answer: {fault}" if fault else ""


async def check_start(settings: Settings) -> None:
    """Check quickly whether a fleet can start here. Raises CommandFault."""
    faults = [await git(), *await asyncio.to_thread(ports, settings, runs=False)]
    for fault in faults:
        if fault.state is Health.FAULT:
            raise CommandFault(f"{fault.part}: {fault.cause}", exit_code=Exit.UNAVAILABLE, hint=fault.mend)


def disk(settings: Settings) -> DoctorFinding:
    """Whether there is enough space under `home` for clones, environments and the event log."""
    directory = _nearest(settings.home)
    try:
        usage = os.statvfs(directory)
    except OSError as error:
        return broken("disk", f"{directory}: {error.strerror}", "set FLEET_HOME")
    free, files = usage.f_bavail * usage.f_frsize, usage.f_favail
    free_text = f"{free / (1 << 30):.1f} GiB free under {settings.home}"
    mend = "make room, or set FLEET_HOME to a larger disk"
    if free < LEAST_FREE_BYTES:
        return broken("disk", f"only {free_text}", mend)
    # File systems without a limit of files report 0 of 0.
    if usage.f_files and files < LEAST_FREE_FILES:
        return broken("disk", f"{free_text}, but only {files:,} files more", mend)
    if not os.access(directory, os.W_OK):
        return broken("disk", f"{directory} cannot be written", "set FLEET_HOME, or correct its owner")
    return ok("disk", free_text)


def open_files(settings: Settings) -> DoctorFinding:
    """Whether a process may open as many files as `max_agents` need."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        return ok("open files", "no limit")
    room = max(0, hard - _FILES_BESIDE) // FILES_EACH
    limit_text = f"at most {hard:,}, enough for some {room:,} agents in a process"
    if room >= settings.max_agents:
        return ok("open files", limit_text)
    return broken(
        "open files",
        f"{limit_text}, and max_agents is {settings.max_agents}",
        "raise the hard limit (ulimit -Hn, LimitNOFILE of a unit), or lower FLEET_MAX_AGENTS",
    )


def ports(settings: Settings, *, runs: bool) -> list[DoctorFinding]:
    """Whether a fleet's ports are free; nothing is tested where a fleet `runs` already."""
    wanted = {
        "listen": settings.listen,
        "context_listen": "" if settings.context_url else settings.context_address,
        # Without a setting the gateway falls back to another port.
        "http_listen": settings.http_address if settings.http_listen else "",
        "metrics_listen": settings.metrics_listen,
        "probe_listen": settings.probe_listen,
    }
    open_to_others = [f"{name} {address}" for name, address in wanted.items() if address and not on_loopback(address)]
    # Parts with a port of their own choice (embedded NATS, a private Ray) listen on loopback.
    reach = f"others can reach {', '.join(open_to_others)}" if open_to_others else "on loopback alone"
    if runs:
        return [ok("ports", f"in use by the fleet that runs here; {reach}")]
    faults: list[DoctorFinding] = []
    for name, address in wanted.items():
        # Metrics fall back to the next port.
        if address and (fault := _bind_fault(address)) and (name != "metrics_listen" or fault == _NO_ADDRESS):
            other = "correct" if fault == _NO_ADDRESS else "stop the program that uses it, or set"
            mend = f"{other} FLEET_{name.upper()}"
            faults.append(broken(f"port of {name}", f"{address}: {fault}", mend))
    addresses = ", ".join(address for address in wanted.values() if address)
    return faults or [ok("ports", f"free: {addresses}; {reach}")]


_NO_ADDRESS = "not HOST:PORT, such as 127.0.0.1:50055"


def _bind_fault(address: str) -> str:
    """Why an address cannot be bound; empty where it can."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        return _NO_ADDRESS
    try:
        family, kind, protocol, _, bind_address = socket.getaddrinfo(
            host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(bind_address)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _nearest(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
