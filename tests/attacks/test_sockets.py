"""Ways out by sockets where commands share the host's network: to the fleet's ports, other workspaces, local sockets.

Each is tried for real by `socket_calls.py`, as root and as an ordinary user; the controls run where nothing is in the
way.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from swe_ai_fleet.sandbox import IsolationLevel, NetworkGrant, Sandbox, SandboxPolicy
from swe_ai_fleet.sandbox.landlock import Landlock
from swe_ai_fleet.sandbox.seccomp import seccomp_filter
from tests.attacks import socket_calls
from tests.confinement import braced, drive, needs_bwrap, python, require_ordinary_user

pytestmark = pytest.mark.skipif(Landlock.find() is None, reason="the kernel offers no Landlock")

_SCRIPT = Path(socket_calls.__file__).read_text()
_OUT = ("spellings", "sending", "unix", "supervisor", "flipped_address", "swapped_descriptor", "sharing")
_RACES = ("flipped_address", "swapped_descriptor")
_HARMLESS = ("far_away", "listening_elsewhere", "crowd")


def _without_supervisor(program: bytes) -> list[int]:
    """What sockets come to in a process under the filter whose listener nobody has."""
    script = """
import ctypes, json, socket, sys
program = bytes.fromhex(sys.argv[1])
held = ctypes.create_string_buffer(program, len(program))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
described = Program(len(program) // 8, ctypes.cast(held, ctypes.c_void_p))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
if program:
    assert libc.prctl(22, 2, ctypes.byref(described), 0, 0) == 0
answers = []
here, there = ("127.0.0.1", 0), ("127.0.0.1", int(sys.argv[2]))
for act in (lambda s: s.bind(here), lambda s: s.listen(), lambda s: s.connect(there)):
    with socket.socket() as client:
        try:
            act(client)
            answers.append(0)
        except OSError as error:
            answers.append(error.errno)
print(json.dumps(answers))
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        argv = [sys.executable, "-c", script, program.hex(), str(server.getsockname()[1])]
        return json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)


class Neighbours:
    """What listens on this host beside a sandbox, and who came there."""

    def __init__(self, stack: ExitStack) -> None:
        self.came: list[str] = []
        self.token = f"fleet-{uuid.uuid4().hex}"
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-outside-")))
        place.chmod(0o755)
        tcp, shared = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0), reuse_port=True)
        port = tcp.getsockname()[1]
        v6 = socket.create_server(("::1", port), family=socket.AF_INET6)
        listeners = [tcp, shared, socket.create_server(("127.0.0.2", port)), v6]
        receivers: list[socket.socket] = []
        for family, address, kind, known in (
            (socket.AF_INET, ("127.0.0.1", port), socket.SOCK_DGRAM, receivers),
            (socket.AF_INET6, ("::1", port), socket.SOCK_DGRAM, receivers),
            (socket.AF_UNIX, str(place / "d"), socket.SOCK_DGRAM, receivers),
            (socket.AF_UNIX, f"\0{self.token}-d", socket.SOCK_DGRAM, receivers),
            (socket.AF_UNIX, str(place / "s"), socket.SOCK_STREAM, listeners),
            (socket.AF_UNIX, f"\0{self.token}", socket.SOCK_STREAM, listeners),
        ):
            known.append(socket.socket(family, kind))
            known[-1].bind(address)
            if kind == socket.SOCK_STREAM:
                known[-1].listen()
        for name in ("s", "d"):
            (place / name).chmod(0o777)
        for sockets, serve in ((listeners, self._accept), (receivers, self._receive)):
            for one in sockets:
                threading.Thread(target=serve, args=(one,), daemon=True).start()
                stack.callback(self._end, one)
        with socket.create_server(("127.0.0.1", 0)) as unused, socket.create_server(("127.0.0.1", 0)) as another:
            self.reserved, self.free = unused.getsockname()[1], another.getsockname()[1]
        self.told = {
            "port": port, "shared": shared.getsockname()[1], "reserved": self.reserved, "free": self.free,
            "unix": str(place / "s"), "datagrams": str(place / "d"), "token": self.token,
        }  # fmt: skip

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.came.append(str(listener))
                client.close()

    def _receive(self, receiver: socket.socket) -> None:
        with suppress(OSError):
            while receiver.recv(100):
                self.came.append(str(receiver))

    def _end(self, one: socket.socket) -> None:
        with one, suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@pytest.fixture(params=["as we are", pytest.param("as an ordinary user", marks=pytest.mark.slow)])
def ordinary(request: pytest.FixtureRequest) -> bool:
    if request.param == "as an ordinary user":
        require_ordinary_user()
    return request.param == "as an ordinary user"


@pytest.fixture
def neighbours() -> Iterator[Neighbours]:
    with ExitStack() as stack:
        yield Neighbours(stack)


def _sandbox(level: IsolationLevel, neighbours: Neighbours) -> Sandbox:
    return Sandbox(SandboxPolicy(level=level, reserved_ports=frozenset({neighbours.reserved}), grace_seconds=0.3))


@pytest.mark.parametrize(
    ("level", "name"),
    [
        *(pytest.param(IsolationLevel.NONE, name, marks=[pytest.mark.slow] if name in _RACES else []) for name in _OUT),
        # In a network of its own a command listens anywhere.
        pytest.param(IsolationLevel.BUBBLEWRAP, "listening_elsewhere", marks=needs_bwrap),
    ],
)
async def test_control_without_what_is_in_the_way_everything_is_reached(
    level: IsolationLevel, name: str, tmp_path: Path, neighbours: Neighbours
) -> None:
    # A race may be lost on a busy machine.
    for _ in range(5 if name in _RACES else 1):
        async with _sandbox(level, neighbours).workspace(tmp_path) as workspace:
            result = await workspace.run(python(_SCRIPT, name, json.dumps(neighbours.told), timeout_seconds=120))
        assert result.ok, result.stderr.text()
        if reached := json.loads(result.stdout.text()):
            break
    assert reached


@pytest.mark.parametrize(
    ("names", "ordinary"),
    [
        ((*_OUT, *_HARMLESS), "as we are"),
        pytest.param((*_OUT, *_HARMLESS), "as an ordinary user", marks=pytest.mark.slow),
    ],
    ids=["as we are", "as an ordinary user"],
    indirect=["ordinary"],
)
def test_nothing_of_the_host_is_reached(names: tuple[str, ...], ordinary: bool, neighbours: Neighbours) -> None:
    """One way after the other, in one workspace."""
    told = braced(json.dumps(neighbours.told))
    commands = ((["python3", "-c", braced(_SCRIPT), name, told], {"timeout_seconds": 120}) for name in names)
    results = drive("landlock", ordinary, *commands, policy={"reserved_ports": [neighbours.reserved]})["results"]
    for name, result in zip(names, results, strict=True):
        assert (name, result["exit"], result["out"]) == (name, 0, "[]\n"), result["err"]
    assert neighbours.came == []


_SERVER = """
import os, socket
with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as named:
    named.bind("socket")
    named.listen()
    with open("port.new", "w") as file:
        file.write(str(server.getsockname()[1]))
    os.rename("port.new", "port")
    for listener in (server, named):
        listener.settimeout(60)
        listener.accept()[0].sendall(b"here")
"""
_CLIENT = """
import socket, sys
for family, address in ((socket.AF_INET, ("127.0.0.1", int(sys.argv[1]))), (socket.AF_UNIX, sys.argv[2])):
    with socket.socket(family) as client:
        try:
            client.connect(address)
            print(client.recv(10))
        except OSError as error:
            print(error.errno)
"""


@pytest.mark.parametrize("level", [IsolationLevel.LANDLOCK, IsolationLevel.NONE])
async def test_what_a_workspace_serves_is_its_own(
    level: IsolationLevel, tmp_path: Path, neighbours: Neighbours
) -> None:
    roots = [tmp_path / "one", tmp_path / "other"]
    for root in roots:
        root.mkdir()
    sandbox = _sandbox(level, neighbours)
    async with sandbox.workspace(roots[0]) as server, sandbox.workspace(roots[1]) as client:
        serving = asyncio.create_task(server.run(python(_SERVER, timeout_seconds=60)))
        while not (roots[0] / "port").exists() and not serving.done():
            await asyncio.sleep(0.01)
        port = (roots[0] / "port").read_text()
        result = await client.run(python(_CLIENT, port, str(roots[0] / "socket")))
        if level is IsolationLevel.NONE:
            # The control: where nothing keeps them apart it answers.
            assert result.stdout.text() == "b'here'\nb'here'\n"
        else:
            assert result.stdout.text() == f"{errno.ECONNREFUSED}\n{errno.EACCES}\n", result.stderr.text()
            # A process of the host does reach it, which docs/sandbox.md says.
            for family, address in (
                (socket.AF_INET, ("127.0.0.1", int(port))),
                (socket.AF_UNIX, str(roots[0] / "socket")),
            ):
                with socket.socket(family) as beside:
                    await asyncio.to_thread(beside.connect, address)
                    assert await asyncio.to_thread(beside.recv, 10) == b"here"
        assert (await serving).ok, (await serving).stderr.text()


async def test_a_proxy_is_one_workspaces_alone(tmp_path: Path, neighbours: Neighbours) -> None:
    roots = [tmp_path / "granted", tmp_path / "other"]
    for root in roots:
        root.mkdir()
    sandbox = _sandbox(IsolationLevel.LANDLOCK, neighbours)
    granted = NetworkGrant(hosts=("*",))
    connect = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 10); print('there')"
    async with sandbox.workspace(roots[0], network=granted) as first, sandbox.workspace(roots[1]) as second:
        named = await first.run(python("import os; print(os.environ['http_proxy'])"))
        port = named.stdout.text().strip().rpartition(":")[2]
        assert (await first.run(python(connect, port))).stdout.text() == "there\n"
        assert "ConnectionRefusedError" in (await second.run(python(connect, port))).stderr.text()


def test_without_its_supervisor_every_call_is_refused() -> None:
    assert _without_supervisor(b"") == [0, 0, 0]
    program = seccomp_filter(os.uname().machine, namespaces=False, supervised=True)
    assert _without_supervisor(program) == [errno.ENOSYS] * 3
