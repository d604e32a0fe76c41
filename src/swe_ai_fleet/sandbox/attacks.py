"""Attacks of a command on the host, and trials that show which of them succeed."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import socket
import tempfile
from collections.abc import Awaitable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.sandbox import jail, processes
from swe_ai_fleet.sandbox.policy import SandboxPolicy
from swe_ai_fleet.sandbox.workspace import LocalWorkspace, SandboxHost

_MIB = 1024**2
_LIMITS = SandboxPolicy(
    max_processes=64, max_memory_bytes=128 * _MIB, max_file_bytes=2 * _MIB, max_disk_bytes=8 * _MIB, grace_seconds=0.2
)


class Attack(StrEnum):
    """Attacks of a command on the host."""

    FILES = "reading or writing files outside the workspace"
    METADATA = "changing modes and times of files outside"
    NETWORK = "reaching the network, loopback and local sockets included"
    PROCESSES = "reading, tracing or killing other processes; outliving the call"
    LISTING = "seeing which other processes run, with their arguments"
    PRIVILEGES = "mounting, making devices and set-uid files, writing kernel settings"
    FORK_BOMB = "fork bombs"
    MEMORY = "using up the memory"
    FILE_SIZE = "writing files without end"
    DISK = "filling the disk with many files"


# Prints the names of successful attacks. A success does no harm: the mount lies in the workspace and is undone, the
# kernel setting gets the value it had.
_REACH = """
import ctypes, json, os, socket, sys, time
targets = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
done = set()

def attempt(name, act):
    try:
        if act() is not False:
            done.add(name)
    except (OSError, ValueError):
        pass

def write(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))

def connect(family, address):
    with socket.socket(family) as client:
        client.settimeout(2)
        client.connect(address)

def send(sender, flags, address):
    with sender:
        sender.settimeout(2)
        sender.sendto(b"x", flags, address)

def mount():
    os.makedirs("m", exist_ok=True)
    if libc.mount(b"none", os.path.abspath("m").encode(), b"tmpfs", 0, None):
        return False
    libc.umount2(os.path.abspath("m").encode(), 2)

def setting():
    path = "/proc/sys/vm/stat_interval"
    with open(path) as file:
        value = file.read()
    with open(path, "w") as file:
        file.write(value)

pid = targets["pid"]
attempt("FILES", lambda: open(targets["secret"]).close())
attempt("FILES", lambda: write(targets["secret"]))
attempt("FILES", lambda: write(targets["secret"] + ".new"))
attempt("FILES", lambda: os.truncate(targets["secret"], 1))
attempt("FILES", lambda: os.listdir(os.path.dirname(targets["secret"])))
attempt("METADATA", lambda: os.chmod(targets["secret"], 0o644))
attempt("METADATA", lambda: os.utime(targets["secret"]))
attempt("NETWORK", lambda: connect(socket.AF_INET, ("127.0.0.1", targets["port"])))
attempt("NETWORK", lambda: connect(socket.AF_INET6, ("::ffff:127.0.0.1", targets["port"])))
attempt("NETWORK", lambda: send(socket.socket(), socket.MSG_FASTOPEN, ("127.0.0.1", targets["port"])))
attempt("NETWORK", lambda: send(socket.socketpair(type=socket.SOCK_DGRAM)[0], 0, targets["datagrams"]))
attempt("NETWORK", lambda: connect(socket.AF_UNIX, targets["socket"]))
attempt("NETWORK", lambda: connect(socket.AF_UNIX, "\\0" + targets["token"]))
attempt("NETWORK", lambda: socket.socket(40).close())
attempt("PROCESSES", lambda: os.kill(pid, 0))
attempt("PROCESSES", lambda: targets["token"].encode() in open(f"/proc/{pid}/environ", "rb").read())
attempt("PROCESSES", lambda: libc.ptrace(0x4206, pid, 0, 0) == 0)
attempt("LISTING", lambda: open(f"/proc/{pid}/cmdline", "rb").read().hex() == targets["arguments"])
attempt("PRIVILEGES", mount)
attempt("PRIVILEGES", setting)
attempt("PRIVILEGES", lambda: os.mknod("null", 0o020600, os.makedev(1, 3)))
attempt("PRIVILEGES", lambda: libc.unshare(0x10000000) == 0)
attempt("PRIVILEGES", lambda: write("set-uid") or os.chmod("set-uid", 0o4755))
print(json.dumps(sorted(done)), flush=True)
if not os.fork():
    os.setsid()
    if not os.fork():
        os.execve("/bin/sleep", ["sleep", targets["sleeper"]], {})
    os._exit(0)
os.wait()
"""
_FORK = """
import os, sys, time
count = 0
while count < int(sys.argv[1]):
    try:
        pid = os.fork()
    except OSError:
        break
    if not pid:
        time.sleep(60)
        os._exit(0)
    count += 1
print(count)
"""
_SERVE = """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), 5).close()
"""
_FILL_MEMORY = "import sys; held = bytearray(int(sys.argv[1])); print(len(held))"
_FILL_DISK = """
import time
for number in range(200):
    with open(f"fill-{number}", "wb") as file:
        file.write(bytes(1024**2))
    time.sleep(0.02)
print("filled")
"""


async def successful_attacks(host: SandboxHost) -> set[Attack]:
    """Try every attack from workspaces on a host, and return those that succeeded. It takes about a second.

    The workspaces have low limits. Memory is tried only where a control group should limit it.
    """
    host = replace(host, policy=replace(_LIMITS, level=host.policy.level))
    attacks: set[Attack] = set() if host.groups.memory else {Attack.MEMORY}
    with tempfile.TemporaryDirectory(prefix="fleet-probe-") as name:
        for number, trial in enumerate((_reach, _limits, _disk)):
            root = Path(name, str(number))
            await asyncio.to_thread(root.mkdir)
            async with probe_workspace(host, root) as workspace:
                attacks |= await trial(workspace, Path(name))
    return attacks


async def has_loopback(host: SandboxHost) -> bool:
    """Whether a command can listen on loopback and connect to itself."""
    with tempfile.TemporaryDirectory(prefix="fleet-probe-") as name:
        async with probe_workspace(host, Path(name)) as workspace:
            return (await _python(workspace, _SERVE)).ok


async def _reach(workspace: LocalWorkspace, outside: Path) -> set[Attack]:
    token, sleeper = secrets.token_hex(8), f"{1_000_000 + secrets.randbelow(1_000_000)}.5"
    secret = outside / "secret"
    await asyncio.to_thread(secret.touch)
    witness = await asyncio.create_subprocess_exec(
        *(jail.shell(), "-c", "read line", token),
        stdin=asyncio.subprocess.PIPE,
        env={"TOKEN": token},
    )
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.socket(socket.AF_UNIX) as named,
            socket.socket(socket.AF_UNIX) as abstract,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        ):
            named.bind(str(outside / "s"))
            datagrams.bind(str(outside / "d"))
            abstract.bind(f"\0{token}")
            for listener in (named, abstract):
                listener.listen()
            targets = {
                "datagrams": str(outside / "d"),
                "arguments": processes.arguments(witness.pid).hex(),
                "pid": witness.pid,
                "port": server.getsockname()[1],
                "secret": str(secret),
                "sleeper": sleeper,
                "socket": str(outside / "s"),
                "token": token,
            }
            result = await _python(workspace, _REACH, json.dumps(targets))
    finally:
        witness.kill()
        await witness.wait()
    try:
        attacks = {Attack[name] for name in json.loads(result.stdout.text())}
    except ValueError:
        # The trial was killed, or has no interpreter: without a result, every attack counts as successful.
        return set(Attack)
    survivors = processes.by_argument(sleeper)
    processes.send_signal(survivors, signal.SIGKILL)
    if survivors:
        attacks.add(Attack.PROCESSES)
    return attacks


async def _limits(workspace: LocalWorkspace, outside: Path) -> set[Attack]:
    attacks: set[Attack] = set()
    forked = await _python(workspace, _FORK, str(2 * _LIMITS.max_processes))
    if not 0 < _number(forked) < 2 * _LIMITS.max_processes:
        attacks.add(Attack.FORK_BOMB)
    filled = await _python(workspace, _FILL_MEMORY, str(2 * _LIMITS.max_memory_bytes))
    if filled.ok:
        attacks.add(Attack.MEMORY)
    await _python(workspace, "open('large', 'wb').write(bytes(int(__import__('sys').argv[1])))", str(4 * _MIB))
    if (workspace.root / "large").stat().st_size > _LIMITS.max_file_bytes:
        attacks.add(Attack.FILE_SIZE)
    return attacks


async def _disk(workspace: LocalWorkspace, outside: Path) -> set[Attack]:
    result = await _python(workspace, _FILL_DISK)
    return {Attack.DISK} if result.ok else set()


def _number(result: CommandResult) -> int:
    text = result.stdout.text().strip()
    return int(text) if text.isdigit() else 0


def _python(workspace: LocalWorkspace, script: str, *arguments: str) -> Awaitable[CommandResult]:
    argv = (*jail.python(workspace.environment), "-I", "-S", "-c", script, *arguments)
    return workspace.run(Command(argv=argv, timeout_seconds=30, light=True))


def probe_workspace(host: SandboxHost, root: Path) -> LocalWorkspace:
    """A workspace for a trial."""

    async def chosen() -> SandboxHost:
        return host

    return LocalWorkspace(
        chosen, root, policy=host.policy, environment=Environment(), network=None, writable=(), scratch=None
    )
