"""Container images: how they are had from registries, and commands in them, beside the fleet's programs or in a Pod."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from swe_ai_fleet.adapters.git_workspace import (
    GitClone,
    ImageRules,
    ImageStore,
    RegistryRules,
    TenantDisk,
    mounted_credentials,
)
from swe_ai_fleet.domain.command import Command, CommandResult, NetworkGrant
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository, RepoRef
from swe_ai_fleet.sandbox import IsolationLevel, LocalWorkspace, Sandbox, SandboxPolicy, images, jail
from swe_ai_fleet.sandbox.images import ImageContainer
from swe_ai_fleet.sandbox.jail import python
from swe_ai_fleet.sandbox.landlock import Landlock
from swe_ai_fleet.testing.repositories import make_repository
from tests.confinement import until
from tests.container_images import MadeImage, digest_of, directory, entry, layer, link, of_this_machine
from tests.environments import make_provider, sh

IMAGE = MadeImage(layers=[layer(entry("a", "x" * 500)), layer(entry("b", "y"))])


class Server:
    """A registry on loopback that asks for a token, which it gives to one user; what it was shown is in `seen`."""

    def __init__(self) -> None:
        manifest, blobs = IMAGE.manifest()
        self.manifests = {"1": manifest, digest_of(manifest): manifest}
        self.blobs = {digest_of(blob): blob for blob in blobs}
        self.realm = ""
        self.redirect = ""
        self.seen: list[tuple[str, str]] = []
        self.host = ""

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[Server]:
        application = web.Application()
        application.router.add_get("/{path:.*}", self._answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.host = f"127.0.0.1:{runner.addresses[0][1]}"
        self.realm = self.realm or f"http://{self.host}/token"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        shown = request.headers.get("Authorization", "")
        self.seen.append((request.path, shown))
        if request.path == "/token":
            assert request.query["scope"] == "repository:team/made:pull"
            is_robot = shown == "Basic " + base64.b64encode(b"robot:s3cret").decode()
            return web.json_response({"token": "t0ken"}, status=200 if is_robot else 401)
        if shown != "Bearer t0ken":
            challenge = f'Bearer realm="{self.realm}",service="registry"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        kind, name = request.path.split("/")[-2:]
        if kind == "blobs" and self.redirect:
            raise web.HTTPTemporaryRedirect(self.redirect)
        found = {"manifests": self.manifests, "blobs": self.blobs}[kind].get(name)
        return web.Response(status=404) if found is None else web.Response(body=found)


def store_of(place: Path, server: Server, *, hosts: str = "127.0.0.1", allowed: str = "") -> ImageStore:
    secrets = place / "secrets/default"
    secrets.mkdir(parents=True, exist_ok=True)
    for name, text in {"username": "robot", "password": "s3cret", "hosts": hosts, "other.password": "no"}.items():
        (secrets / name).write_text(text)
    rules = RegistryRules(
        allowed=(allowed or f"http://{server.host}/team/*",),
        credentials=mounted_credentials(place / "secrets", by_tenant=True),
    )
    disk = TenantDisk(home=place / "home", max_bytes=0, unmeasured_bytes=0)
    return ImageStore(place / "home", ImageRules(registries=rules), disk)


async def test_an_image_is_pulled_with_a_token_and_pinned_by_its_manifest(tmp_path: Path) -> None:
    async with Server().serving() as server:
        store, name = store_of(tmp_path, server), f"docker://{server.host}/team/made:1"
        manifest, _ = IMAGE.manifest()
        pinned = await store.pin("default", name)
        assert pinned == f"{name}@{digest_of(manifest)}"
        root = await store.root("default", pinned)
        assert root.digest == IMAGE.digest
        assert (Path(root.path) / "a").read_text() == "x" * 500
        asked = len(server.seen)
        # What is there is not asked for again; a tenant without the credential is not given it.
        assert (await store.root("default", pinned)) == root
        assert len(server.seen) == asked
        with pytest.raises(PreconditionFailed, match="answers 401"):
            await store.root("stranger", pinned)
        with pytest.raises(InvalidRequest, match="no credential 'lost'") as refused:
            await store.pin("default", name, "lost")
        assert refused.value.field == "environment.image_credential_ref"


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        ("another layer", PreconditionFailed, "another digest"),
        ("a layer that is larger", PreconditionFailed, "larger than its manifest says"),
        ("another manifest", PreconditionFailed, "another digest"),
        ("a redirect without TLS", PreconditionFailed, "without TLS"),
        ("a redirect inside", Unavailable, "not on the public internet"),
        ("a registry that is not named", InvalidRequest, "are not accepted"),
    ],
)
async def test_what_a_registry_must_not_do_is_refused(
    tmp_path: Path, change: str, kind: type[FleetError], reason: str
) -> None:
    async with Server().serving() as server, Server().serving() as inside:
        name, image = f"docker://{server.host}/team/made", IMAGE.manifest()
        first = digest_of(image[1][1])
        pinned = f"{name}@{digest_of(image[0])}"
        match change:
            case "another layer":
                server.blobs[first] = server.blobs[first][:-1] + b"x"
            case "a layer that is larger":
                server.blobs[first] += b"x"
            case "another manifest":
                server.manifests[digest_of(image[0])] += b" "
            case "a redirect without TLS":
                server.redirect = f"http://{inside.host}/v2/x"
            case "a redirect inside":
                server.redirect = f"https://{inside.host.partition(':')[0]}/v2/x"
            case _:
                pinned = f"docker://{inside.host}/team/made:1"
        with pytest.raises(kind, match=reason):
            await store_of(tmp_path, server).root("default", pinned)
        assert inside.seen == []
        assert not list((tmp_path / "home/images").glob("[0-9a-f]*/root"))


async def test_a_credential_is_shown_to_hosts_that_its_keeper_named(tmp_path: Path) -> None:
    async with Server().serving() as thief, Server().serving() as server:
        name = f"docker://{server.host}/team/made:1"
        with pytest.raises(PreconditionFailed, match="answers 401"):
            await store_of(tmp_path, server, hosts="registry.example.org").pin("default", name)
        assert {shown for _, shown in server.seen} == {""}
        # A registry names who gives tokens; another place is asked over TLS alone, and never inside.
        for realm, reason in (
            (f"http://{thief.host}/token", "answers 401"),
            ("https://127.0.0.1/token", "not on the public internet"),
        ):
            server.realm = realm
            with pytest.raises((PreconditionFailed, Unavailable), match=reason):
                await store_of(tmp_path, server).pin("default", name)
        assert thief.seen == []


# --- container images as the root of commands: found where rules allow it, unpacked once, shared, never written to


PROGRAMS = ("id", "ls", "cat", "env", "mv", "ln", "mkdir", "rm")


@pytest.fixture(scope="module")
def image() -> MadeImage:
    config = {"User": "bob", "WorkingDir": "/app", "Env": ["PATH=/bin", "COLOUR=green", "HOME=/nowhere", "1=x"]}
    files = (directory("app"), entry("app/hidden", "of the image"), entry("usr/share/there", "of the image"))
    return MadeImage(layers=[of_this_machine(*PROGRAMS, files=files)], config=config)


class World:
    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "default").mkdir()
        self.provider = make_provider(place, images=ImageRules(folders=(place / "{tenant}",)))

    async def environment(self, image: str, **spec: Any) -> Environment:
        return await self.provider.environment(await self.pinned(), EnvironmentSpec(image=image, **spec))

    @asynccontextmanager
    async def clone(self, name: str, image: str, **spec: Any) -> AsyncGenerator[GitClone]:
        environment = await self.environment(image, **spec)
        async with self.provider.open("execution", name, await self.pinned(), environment) as clone:
            yield clone

    async def pinned(self) -> PinnedRepository:
        if not (self.place / "repo").exists():
            make_repository(self.place / "repo", {"README.md": "here\n"})
        return await self.provider.pin("default", RepoRef(location=str(self.place / "repo")))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_commands_run_in_the_image_with_its_user_variables_and_directory(world: World, image: MadeImage) -> None:
    async with world.clone("one", image.layout(world.place / "default/layout")) as clone:
        assert (await sh(clone, "id -u; id -g")).split() == ["1234", "2345"]
        assert (await sh(clone, "echo $COLOUR $HOME; cat /usr/share/there")) == "green /home/agent\nof the image"
        # The workspace stands where the image's own directory is.
        assert (await sh(clone, "cat /app/README.md; ls /app; ls /usr/bin")).startswith("here\nREADME.md\nls:")
        # The fleet's own git and Python are there for it, whatever the image has.
        assert await sh(clone, "git log --format=%s") == "First commit"
        argv = (*python(clone.environment), "-I", "-c", "import hashlib, json, socket, sys; print(sys.prefix)")
        assert (await clone.run(Command(argv=argv))).stdout.text().strip() == "/run/fleet/own"
        # Nothing of the host is in it: neither its programs nor its files.
        assert await sh(clone, "ls /etc; ls /usr; ls -A /run") == "hosts\npasswd\nshare\nfleet"


async def test_two_workspaces_share_a_root_that_neither_can_write_to(world: World, image: MadeImage) -> None:
    name = image.archive(world.place / "default/image.tar")
    async with world.clone("one", name) as one, world.clone("two", name) as two:
        assert one.environment.image == two.environment.image
        assert one.environment.image is not None
        root = Path(one.environment.image.path)
        before = _state(root)
        spoil = (
            "echo bad >/usr/share/there; rm -r /etc; mv /bin/cat /bin/dog; ln -s /usr /srv; echo x >/new; mkdir /bin/x;"
            "echo x >/run/fleet/own/sh; echo x >/run/fleet/own/lib/libc.so.6; mv /run /run2; mv /home /away"
        )
        await sh(one, spoil)
        # What it changed is there for its later commands, in whatever session they run.
        assert await sh(one, "dog /usr/share/there; ls -d /etc /run/fleet/own/sh 2>&1") == (
            "bad\nls: cannot access '/etc': No such file or directory\n/run/fleet/own/sh"
        )
        await one.run(Command(argv=("sh", "-c", "while :; do :; done"), timeout_seconds=0.2))
        assert await sh(one, "dog /new") == "x"
        assert await sh(two, "cat /usr/share/there; echo; ls /new /srv 2>&1 | cat") == (
            "of the image\nls: cannot access '/new': No such file or directory\n"
            "ls: cannot access '/srv': No such file or directory"
        )
        assert _state(root) == before
        # A third one finds the same.
        async with world.clone("three", name) as three:
            assert await sh(three, "cat /usr/share/there") == "of the image"
    assert _state(root) == before


async def test_no_mount_point_is_made_where_a_link_leads(world: World, image: MadeImage, tmp_path: Path) -> None:
    """A link of the image, or of a command, that would have the next session's mount points made on the host."""
    name = image.layout(world.place / "default/layout")
    outside = f"/oldroot{tmp_path}/outside"
    async with world.clone("one", name) as clone:
        # Its own home is a mount point inside: the directory around it can be moved away by its copy alone.
        await sh(clone, f"mv /home /away; ln -s {outside} /home/x")
        await clone.run(Command(argv=("sh", "-c", "while :; do :; done"), timeout_seconds=0.2))
        assert await sh(clone, "echo still here") == "still here"
    hostile = replace(image, layers=[*image.layers, layer(link("home", outside))])
    with pytest.raises(PreconditionFailed, match="/home is a link"):
        await world.environment(hostile.layout(world.place / "default/layout", "hostile"))
    assert not (tmp_path / "outside").exists()


async def test_an_image_is_unpacked_once_and_goes_when_nobody_has_used_it_for_long(
    world: World, image: MadeImage
) -> None:
    name = image.layout(world.place / "default/layout")
    pinned = await world.provider.pin_image("default", EnvironmentSpec(image=name))
    assert pinned.image.startswith(f"{name}@sha256:")
    async with world.clone("one", pinned.image) as clone:
        assert clone.environment.image is not None
        root = Path(clone.environment.image.path)
        assert clone.environment.image.digest == image.digest
        assert f"all of it is in the image {pinned.image} ({image.digest})" in [
            decision.what for decision in clone.environment.report.decisions
        ]
    before = root.stat().st_ino
    # The tag means another image now; what was pinned is had from this node, also when its source is gone.
    other = replace(image, config={"Env": ["OTHER=1"]})
    shutil.rmtree(world.place / "default/layout")
    other.layout(world.place / "default/layout")
    async with world.clone("two", pinned.image) as clone:
        assert await sh(clone, "echo $COLOUR") == "green"
    assert root.stat().st_ino == before
    assert (await world.environment(name)).image != clone.environment.image
    # Another tenant has to ask where it is.
    repository = replace(await world.pinned(), tenant="stranger")
    with pytest.raises(InvalidRequest, match="in no folder of images"):
        await world.provider.environment(repository, EnvironmentSpec(image=pinned.image))
    await world.provider.release("execution")
    long_ago = time.time() - 40 * 86_400
    os.utime(root.parent, (long_ago, long_ago))
    assert (await world.provider.reap()).images == 1
    assert not root.exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("python:3.12", "images of docker.io/library/python are not accepted"),
        ("docker-archive:/etc/passwd", "in no folder of images"),
        ("oci:/{default}/../stranger/layout", "in no folder of images"),
        ("http://registry.example.org/image", "names no image"),
        ("-v /:/host", "names no image"),
    ],
)
async def test_only_what_the_operator_allows_is_looked_at(world: World, name: str, reason: str) -> None:
    (world.place / "stranger").mkdir()
    name = name.replace("/{default}", str(world.place / "default"))
    with pytest.raises((InvalidRequest, PreconditionFailed), match=reason) as refused:
        await world.environment(name)
    assert refused.value.field == "environment.container_image"


def _state(root: Path) -> dict[str, tuple[int, bytes]]:
    """Each file with its mode and content, each link with its target."""
    found: dict[str, tuple[int, bytes]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (status.st_mode, content)
    return found


# --- commands in the container of an image beside the fleet's own: two roots over one directory, confined by Landlock


def unpack(image: MadeImage, root: Path) -> Path:
    """A root with the image's layers."""
    root.mkdir(parents=True)
    for data in image.layers:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(root, filter="tar")
    return root


def parts(place: Path) -> Path:
    """What the container that clones leaves for the image's."""
    place.mkdir(parents=True)
    images.carry(jail.shell(), place)
    return place


@contextmanager
def helper(root: Path, volumes: Mapping[str, Path], variables: Mapping[str, str], socket: str) -> Generator[int]:
    """The helper at work in a root, as a container runtime starts it, until the context ends: volumes by mount path.

    It is read-only but for volumes; what is named `ro:PATH` is not written to. Processes, network and shared memory
    are those of the Pod, that is of this machine.
    """
    argv = ["bwrap", "--cap-add", "ALL"] if os.geteuid() == 0 else ["bwrap"]
    argv += ["--bind", str(root), "/", "--proc", "/proc", "--dev", "/dev", "--bind", "/dev/shm", "/dev/shm"]
    argv += ["--ro-bind", "/sys", "/sys"]
    for place, source in volumes.items():
        argv += ["--ro-bind" if place.startswith("ro:") else "--bind", str(source), place.removeprefix("ro:")]
    argv += ["--remount-ro", "/", "--clearenv", "--chdir", "/"]
    for name, value in variables.items():
        argv += ["--setenv", name, value]
    program = f"{images.INSIDE}/swe_ai_fleet/sandbox/container_helper.py"
    argv += ["--", *images.PYTHON, "-I", "-S", program, socket]
    process = subprocess.Popen(argv, start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


POD_IMAGE = f"docker://registry.example/team/image@sha256:{'0' * 64}"
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
        image = await self.container.root(POD_IMAGE)
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
    if Landlock.find() is None:
        pytest.skip("the kernel offers no Landlock")
    return Pod(place)


@pytest.fixture
async def pod(made: Pod) -> AsyncIterator[Pod]:
    made.container = made.sandbox.container = ImageContainer(made.fleet / "socket")
    made.sandbox = Sandbox(made.sandbox.policy, None, made.container)
    made.start()
    with made.helpers:
        yield made


async def run_sh(workspace: LocalWorkspace, script: str, *words: str, seconds: float = 20.0) -> CommandResult:
    return await workspace.run(Command(argv=("sh", "-c", script, "sh", *words), timeout_seconds=seconds))


def code(script: str, workspace: LocalWorkspace, *words: object) -> Command:
    return Command(argv=(*python(workspace.environment), "-I", "-c", script, *map(str, words)), timeout_seconds=20)


async def test_commands_run_in_the_image_and_see_nothing_of_the_fleet(pod: Pod) -> None:
    async with await pod.workspace() as workspace:
        image = workspace.environment.image
        assert image is not None and (image.digest, image.shell) == (POD_IMAGE.partition("@")[2], "sh")
        assert image.variables.keys() == {"PATH", "COLOUR", "HOME", "LD_PRELOAD", *image.variables.keys() & {"PWD"}}
        seen = await run_sh(workspace, "echo $COLOUR $PATH $HOME; ls /bin; echo x >mine; git --version; pwd")
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
            refused = await run_sh(workspace, script)
            assert not refused.ok and "hush" not in refused.stdout.text(), (script, refused)
        # The place where the fleet waits for the helper is not for what the image runs.
        connect = "import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sys.argv[1])"
        refused = await workspace.run(code(connect, workspace, "/run/fleet/socket"))
        assert "Permission denied" in refused.stderr.text(), refused
        ours = await workspace.run(code("import hashlib, socket, sys; print(sys.prefix)", workspace))
        assert (ours.stdout.text(), ours.stderr.text()) == ("/run/fleet/own\n", ""), ours


async def test_what_a_command_leaves_ends_with_it_and_what_takes_too_long_is_ended(pod: Pod) -> None:
    async with await pod.workspace() as workspace:
        left = await run_sh(workspace, "sleep 1234 & (sleep 1235 &) ; echo $$; exit 7")
        assert left.exit_code == 7
        late = await run_sh(workspace, "sleep 1236", seconds=0.3)
        assert late.timed_out
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        assert not [line for line in lines if line in (b"sleep\x001234\0", b"sleep\x001235\0", b"sleep\x001236\0")]
        together = await asyncio.gather(*(run_sh(workspace, f"echo {number}") for number in range(4)))
        assert [result.stdout.text() for result in together] == [f"{number}\n" for number in range(4)]


async def test_a_container_that_was_started_anew_serves_on(pod: Pod) -> None:
    async with await pod.workspace() as workspace:
        assert (await run_sh(workspace, "echo 1")).ok
        running = asyncio.create_task(run_sh(workspace, "echo begun >begun; sleep 60", seconds=60))
        await until(lambda: (pod.work / "begun").exists())
        pod.helpers.close()
        assert (await running).exit_code in (137, 143)
        pod.start()
        assert (await run_sh(workspace, "echo 2")).stdout.text() == "2\n"


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
