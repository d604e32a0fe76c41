"""Commands in the container of an image beside the fleet's own: two roots over one directory, confined by Landlock."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import Command, CommandResult, NetworkGrant
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.sandbox import IsolationLevel, LocalWorkspace, Sandbox, SandboxPolicy
from swe_ai_fleet.sandbox.images import ImageContainer
from swe_ai_fleet.sandbox.jail import python
from swe_ai_fleet.sandbox.landlock import Landlock
from tests.container_images import MadeImage, directory, entry, layer, link, of_this_machine
from tests.image_roots import helper, parts, unpack

pytestmark = pytest.mark.skipif(Landlock.find() is None, reason="the kernel offers no Landlock")
IMAGE = f"docker://registry.example/team/image@sha256:{'0' * 64}"
PRELOADED = "/etc/evil.so"


class Pod:
    """What the two containers have in common, and the fleet's state in it, which is nothing of the image's."""

    def __init__(self, place: Path) -> None:
        self.fleet, self.work, self.tmp = parts(place / "fleet"), place / "work", place / "tmp"
        self.state = self.tmp / "state"
        for made in (self.work, self.tmp, self.state):
            made.mkdir()
        (self.state / "key").write_text("hush")
        volumes = {str(self.work): self.work, str(self.tmp): self.tmp, "ro:/run/fleet": self.fleet}
        places = [directory(path.removeprefix("ro:").lstrip("/")) for path in volumes]
        places += [directory(name) for name in ("proc", "dev", "sys", "run", "run/fleet")]
        # What an image could put in the way of our programs, and links to what is not its own.
        hostile = [entry("etc/ld.so.preload", PRELOADED), entry(PRELOADED[1:], "no library", mode=0o644)]
        hostile += [link("peek", str(self.state)), link("srv/deep", str(self.state)), link("bin/rooted", "/")]
        made = MadeImage(layers=[of_this_machine("ls", "cat", "env", "sleep", "id"), layer(*places, *hostile)])
        self.root, self.volumes = unpack(made, place / "root"), volumes
        self.container = ImageContainer(self.fleet / "socket")
        self.sandbox = Sandbox(SandboxPolicy(level=IsolationLevel.LANDLOCK, grace_seconds=0.2), None, self.container)
        self.helpers = ExitStack()

    def start(self) -> int:
        """Begin the image's container; what the manifest sets is set."""
        variables = {"PATH": "/bin", "COLOUR": "green", "KUBERNETES_PORT": "1", "LD_PRELOAD": "", "HOME": "/nowhere"}
        return self.helpers.enter_context(helper(self.root, self.volumes, variables, "/run/fleet/socket"))

    async def workspace(self, network: NetworkGrant | None = None) -> LocalWorkspace:
        image = await self.container.root(IMAGE)
        return self.sandbox.workspace(
            self.work, environment=Environment(image=image), scratch=self.tmp, network=network
        )


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="k-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def made(place: Path) -> Pod:
    return Pod(place)


@pytest.fixture
async def pod(made: Pod) -> AsyncIterator[Pod]:
    made.container = made.sandbox.container = ImageContainer(made.fleet / "socket")
    made.sandbox = Sandbox(made.sandbox.policy, None, made.container)
    made.start()
    with made.helpers:
        yield made


async def sh(workspace: LocalWorkspace, script: str, *words: str, seconds: float = 20.0) -> CommandResult:
    return await workspace.run(Command(argv=("sh", "-c", script, "sh", *words), timeout_seconds=seconds))


def code(script: str, workspace: LocalWorkspace, *words: object) -> Command:
    return Command(argv=(*python(workspace.environment), "-I", "-c", script, *map(str, words)), timeout_seconds=20)


async def test_commands_run_in_the_image_and_see_nothing_of_the_fleet(pod: Pod) -> None:
    async with await pod.workspace() as workspace:
        image = workspace.environment.image
        assert image is not None and (image.digest, image.shell) == (IMAGE.partition("@")[2], "sh")
        assert image.variables.keys() == {"PATH", "COLOUR", "HOME", "LD_PRELOAD", *image.variables.keys() & {"PWD"}}
        seen = await sh(workspace, "echo $COLOUR $PATH $HOME; ls /bin; echo x >mine; git --version; pwd")
        lines = seen.stdout.text().split("\n")
        assert lines[0].startswith("green /bin:/run/fleet/own/programs /") and "nowhere" not in lines[0], seen
        assert lines[1:7] == ["cat", "env", "id", "ls", "rooted", "sh"] and lines[-2:] == [str(pod.work), ""], seen
        assert (pod.work / "mine").read_text() == "x\n"
        for script in (
            "cat /peek/key",
            "cat /srv/deep/key",
            f"cat {pod.state}/key",
            f"cat /bin/rooted{pod.state}/key",
            f"ls {pod.state}",
            f"cat /proc/{os.getpid()}/environ",
            f"cat /proc/{os.getpid()}/root{pod.state}/key",
            "echo x >/run/fleet/own/sh",
            "echo x >/new",
            f"echo x >{pod.tmp}/new",
            f"kill {os.getpid()}",
        ):
            refused = await sh(workspace, script)
            assert not refused.ok and "hush" not in refused.stdout.text(), (script, refused)
        # The place where the fleet waits for the helper is not for what the image runs.
        connect = "import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sys.argv[1])"
        refused = await workspace.run(code(connect, workspace, "/run/fleet/socket"))
        assert "Permission denied" in refused.stderr.text(), refused
        ours = await workspace.run(code("import hashlib, socket, sys; print(sys.prefix)", workspace))
        assert (ours.stdout.text(), ours.stderr.text()) == ("/run/fleet/own\n", ""), ours


async def test_what_a_command_leaves_ends_with_it_and_what_takes_too_long_is_ended(pod: Pod) -> None:
    async with await pod.workspace() as workspace:
        left = await sh(workspace, "sleep 1234 & (sleep 1235 &) ; echo $$; exit 7")
        assert left.exit_code == 7
        late = await sh(workspace, "sleep 1236", seconds=0.3)
        assert late.timed_out
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        assert not [line for line in lines if line in (b"sleep\x001234\0", b"sleep\x001235\0", b"sleep\x001236\0")]
        together = await asyncio.gather(*(sh(workspace, f"echo {number}") for number in range(4)))
        assert [result.stdout.text() for result in together] == [f"{number}\n" for number in range(4)]


async def test_a_container_that_was_started_anew_serves_on(pod: Pod) -> None:
    async with await pod.workspace() as workspace:
        assert (await sh(workspace, "echo 1")).ok
        running = asyncio.create_task(sh(workspace, "echo begun >begun; sleep 60", seconds=60))
        while not (pod.work / "begun").exists():
            await asyncio.sleep(0.01)
        pod.helpers.close()
        assert (await running).exit_code in (137, 143)
        pod.start()
        assert (await sh(workspace, "echo 2")).stdout.text() == "2\n"


CONNECT = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""


FETCH = """
import urllib.error, urllib.request
try:
    print(urllib.request.urlopen("http://other.example/", timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


async def test_the_network_of_the_pod_is_not_the_images(pod: Pod) -> None:
    """Both containers have one network: what keeps a command from the fleet's ports is what it is started under."""
    came: list[object] = []

    def comes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer)

    server = await asyncio.start_server(comes, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with await pod.workspace() as workspace:
            refused = await workspace.run(code(CONNECT, workspace, port))
            assert refused.stdout.text() == "ConnectionRefusedError\n", refused
        async with await pod.workspace(NetworkGrant(hosts=("example.org",))) as workspace:
            refused = await workspace.run(code(CONNECT, workspace, port))
            assert refused.stdout.text() == "ConnectionRefusedError\n", refused
            asked = await workspace.run(code(FETCH, workspace))
            assert asked.stdout.text().startswith("403 "), asked
            assert [refusal.host for refusal in workspace.refusals] == ["other.example"]
    assert came == []
