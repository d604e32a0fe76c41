"""Addresses inside, named by callers as repositories: in every spelling, by name, by a redirect, over ssh."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from swe_ai_fleet.adapters.git_workspace import Credential, GitWorkspaceProvider
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.task import Delivery, RepoRef
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.git_server import PASSWORD, USER, GitServer, git_server, served_copy

PUBLIC = "93.184.216.34"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nnot one\n-----END OPENSSH PRIVATE KEY-----"
PATCH = b"--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
SPELLINGS = [
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.0.0.1.", "0.0.0.0", "0",
    "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]",
    "[64:ff9b:1::7f00:1]", "[fe80::1]", "[fd00:ec2::254]", "[fec0::1]", "[ff02::1]", "10.0.0.1", "172.16.0.1",
    "192.168.1.1", "100.64.0.1", "169.254.169.254", "168.63.129.16", "100.100.100.200", "198.18.0.1", "224.0.0.1",
    "255.255.255.255", "localhost", "LOCALHOST.", "a.localhost", "127%2e0.0.1", "\uff11\uff12\uff17.0.0.1",
]  # fmt: skip
NAMES = {
    "inside.example": ["127.0.0.1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "mixed.example": [PUBLIC, "127.0.0.1"],
    "zone.example": ["fe80::1%lo"],
    "odd.example": ["2130706433"],
}


@dataclass
class Names:
    """A name server of our own; a moving name gives one answer after the other, the last one again and again."""

    names: Mapping[str, Sequence[str]]
    moving: dict[str, list[list[str]]] = field(default_factory=dict[str, list[list[str]]])

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        if host in self.moving:
            answers = self.moving[host]
            return answers.pop(0) if len(answers) > 1 else answers[0]
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.names[host]


@dataclass
class Inside:
    """Listeners on loopback, and what came in there."""

    port: int = 0
    came: list[bytes] = field(default_factory=list[bytes])


@pytest.fixture
async def inside() -> AsyncIterator[Inside]:
    found = Inside()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.came.append(b"")
        found.came[-1] = await reader.read(200)
        writer.close()

    one = await asyncio.start_server(take, "127.0.0.1", 0)
    found.port = one.sockets[0].getsockname()[1]
    async with one, await asyncio.start_server(take, "::1", found.port):
        yield found


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GitServer]:
    """A git server that lets everybody in who knows the password."""
    make_repository(tmp_path / "source", {"app.py": "a = 1\n"})
    served_copy(tmp_path / "source", tmp_path / "served")
    async with git_server(tmp_path / "served") as running:
        yield running


async def with_everything(tenant: str, reference: str, location: str) -> Credential:
    return Credential(username=USER, password=PASSWORD, key=KEY)


def fleet(home: Path, *named: str, names: Names | None = None, **variables: str) -> GitWorkspaceProvider:
    home.mkdir(parents=True, exist_ok=True)
    (home / "known_hosts").write_text("")
    return GitWorkspaceProvider(
        home,
        Sandbox(SandboxPolicy()),
        protocols=("http", "https", "ssh"),
        hosts=("*", *named),
        credentials=with_everything,
        resolver=names or Names(NAMES),
        environ={"PATH": os.environ["PATH"], **variables},
    )


def locations(host: str, port: int) -> list[str]:
    found = [f"{scheme}://{host}:{port}/a.git" for scheme in ("https", "http", "ssh")]
    return [*found, f"ssh://git@{host}:{port}/a.git", f"git@{host}:a.git"]


async def test_no_spelling_and_no_name_of_an_address_inside_is_a_repository(tmp_path: Path, inside: Inside) -> None:
    provider = fleet(tmp_path / "home")
    for host, kind in (*((host, InvalidRequest) for host in SPELLINGS), *((host, Unavailable) for host in NAMES)):
        for location in locations(host, inside.port):
            with pytest.raises(kind) as fault:
                await provider.pin("default", RepoRef(location=location))
            assert fault.value.field == "repo.url" if kind is Unavailable else fault.value.field.startswith("repo")
            assert inside.came == [], location


async def test_control_a_name_that_the_operator_names_is_followed(tmp_path: Path, inside: Inside) -> None:
    provider = fleet(tmp_path / "home", f"inside.example:{inside.port}")
    # Over ssh the client's greeting: the name is in no resolver but ours, so it was told the address that was judged.
    greetings = {"https": b"\x16\x03", "http": b"GET /a.git/info/refs", "ssh": b"SSH-2.0-OpenSSH"}
    for scheme, greeting in greetings.items():
        inside.came.clear()
        with pytest.raises(FleetError):
            await provider.pin("default", RepoRef(location=f"{scheme}://inside.example:{inside.port}/a.git"))
        assert inside.came and inside.came[0].startswith(greeting)
        # At its port alone.
        with pytest.raises(Unavailable):
            await provider.pin("default", RepoRef(location=f"{scheme}://inside.example:1/a.git"))


async def test_a_name_that_moves_inside_is_not_followed_there(tmp_path: Path, server: GitServer) -> None:
    """Judged once, and connected to as judged: git itself looks nothing up."""
    port = server.url.rpartition(":")[2]
    names = Names({}, {"moving.example": [[PUBLIC], ["127.0.0.1"]]})
    with pytest.raises(Unavailable):
        async with asyncio.timeout(50):
            await fleet(tmp_path / "home", names=names).pin(
                "default", RepoRef(location=f"http://moving.example:{port}/project.git")
            )
    assert server.seen == []


async def test_a_redirect_leads_nowhere_inside(tmp_path: Path, server: GitServer, inside: Inside) -> None:
    async def redirect(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(f"http://inside.example:{inside.port}{request.path_qs}")

    server.instead = redirect
    port = server.url.rpartition(":")[2]
    names = Names({**NAMES, "outside.example": ["127.0.0.1"]})
    repository = RepoRef(location=f"http://outside.example:{port}/project.git")
    with pytest.raises(Unavailable) as fault:
        await fleet(tmp_path / "home", "outside.example", names=names).pin("default", repository)
    assert server.seen
    assert inside.came == []
    assert "inside.example" not in str(fault.value)
    # Control: where the operator names that host too, the redirect is followed.
    with pytest.raises(FleetError):
        await fleet(tmp_path / "other", "outside.example", "inside.example", names=names).pin("default", repository)
    assert inside.came


async def test_submodules_are_held_to_the_same(tmp_path: Path, server: GitServer, inside: Inside) -> None:
    port = server.url.rpartition(":")[2]
    source = tmp_path / "source"
    commit = git(source, "rev-parse", "HEAD")
    for name, url in (("one", f"http://inside.example:{inside.port}/a.git"), ("two", "https://[::ffff:127.0.0.1]/a")):
        git(source, "config", "-f", ".gitmodules", f"submodule.{name}.path", name)
        git(source, "config", "-f", ".gitmodules", f"submodule.{name}.url", url)
        git(source, "update-index", "--add", "--cacheinfo", f"160000,{commit},{name}")
    git(source, "add", ".gitmodules")
    git(source, "commit", "-q", "-m", "submodules")
    git(tmp_path / "served/project.git", "fetch", "-q", str(source), "main:main")
    names = Names({**NAMES, "outside.example": ["127.0.0.1"]})
    provider = fleet(tmp_path / "home", "outside.example", names=names)
    assert (await provider.pin("default", RepoRef(location=f"http://outside.example:{port}/project.git"))).commit
    assert inside.came == []


async def test_callers_cannot_tell_what_there_is_inside(tmp_path: Path, inside: Inside) -> None:
    """A port that is open, one that is not, a name that means nothing: all the same answer."""
    provider, answers = fleet(tmp_path / "home"), set[tuple[str, str, str]]()
    for place in (f"inside.example:{inside.port}", "inside.example:1", "unknown.example:443"):
        for scheme in ("https", "ssh"):
            with pytest.raises(FleetError) as fault:
                await provider.pin("default", RepoRef(location=f"{scheme}://{place}/a.git"))
            answers.add((type(fault.value).__name__, fault.value.message, fault.value.hint))
    assert len(answers) == 1
    assert "cannot be reached from here" in next(iter(answers))[1]


async def test_a_proxy_of_the_operator_is_not_asked_for_hosts_inside(tmp_path: Path, inside: Inside) -> None:
    proxy = f"http://127.0.0.1:{inside.port}"
    # What `no_proxy` names is judged here, too.
    for number, variables in enumerate(({"https_proxy": proxy}, {"https_proxy": proxy, "no_proxy": "inside.example"})):
        with pytest.raises(Unavailable):
            location = f"https://inside.example:{inside.port}/a.git"
            await fleet(tmp_path / str(number), **variables).pin("default", RepoRef(location=location))
        assert inside.came == []
    # The control: what this machine cannot resolve is the proxy's to judge.
    with pytest.raises(Unavailable):
        provider = fleet(tmp_path / "home", https_proxy=proxy)
        await provider.pin("default", RepoRef(location="https://unknown.example/a.git"))
    assert [data.startswith(b"CONNECT unknown.example:443") for data in inside.came] == [True]


SSH = """#!/usr/bin/env python3
import json, os, subprocess, sys
options = dict(one.split("=", 1) for at, one in enumerate(sys.argv) if sys.argv[at - 1] == "-o" and "=" in one)
key = options.get("IdentityFile", "").strip('"')
with open(sys.argv[0] + ".said", "w") as file:
    known = open(options["UserKnownHostsFile"].strip('"')).read()
    mode = oct(os.stat(key).st_mode & 0o777)
    json.dump({"argv": sys.argv[1:], "variables": dict(os.environ), "key": open(key).read(), "mode": mode,
               "known": known, "home": os.listdir(os.environ["HOME"])}, file)
sys.exit(subprocess.call(["sh", "-c", sys.argv[-1]]))
"""


async def test_ssh_has_one_address_one_key_and_no_home(tmp_path: Path, server: GitServer) -> None:
    """A stand-in for ssh notes what it was started with, and serves git as the other end would."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(SSH)
    (programs / "ssh").chmod(0o755)
    provider = fleet(
        tmp_path / "home",
        "inside.example:2222",
        PATH=f"{programs}:{os.environ['PATH']}",
        HOME=str(Path.home()),
        SSH_AUTH_SOCK="/run/agent",
    )
    (tmp_path / "home/known_hosts").write_text("[inside.example]:2222 ssh-ed25519 AAAA\n")
    location = f"ssh://git@inside.example:2222{server.root}/project.git"
    pinned = await provider.pin("default", RepoRef(location=location))
    assert pinned.commit == git(tmp_path / "source", "rev-parse", "HEAD")
    delivery = Delivery(branch="fleet/one", message="One", push=True)
    assert (await provider.deliver("e1", pinned, PATCH, delivery)).pushed
    assert git(server.root / "project.git", "show", "fleet/one:app.py") == "a = 2"
    said = json.loads((programs / "ssh.said").read_text())
    assert (said["key"], said["mode"]) == (f"{KEY}\n", "0o600")
    assert said["known"].startswith("[inside.example]:2222 ")
    assert "SSH_AUTH_SOCK" not in said["variables"]
    assert said["home"] == ["key"]
    assert not Path(said["variables"]["HOME"]).exists()
    # What the real ssh makes of these words.
    options = said["argv"][: said["argv"].index("-p") + 2]
    meant = effective(*options, "git@inside.example")
    assert meant["hostname"] == ["127.0.0.1"]
    assert meant["port"] == ["2222"]
    assert meant["hostkeyalias"] == ["[inside.example]:2222"]
    assert meant["identityfile"] == [f"{said['variables']['HOME']}/key"]
    assert meant["identityagent"] == ["none"]
    assert meant["stricthostkeychecking"] == ["true"]
    assert meant["userknownhostsfile"] == [str(tmp_path / "home/known_hosts")]
    assert meant.keys().isdisjoint({"proxycommand", "proxyjump"})
    # Control: by itself it looks into the home of whoever runs it.
    assert any(path.startswith(("~/.ssh", str(Path.home()))) for path in effective("inside.example")["identityfile"])


def effective(*arguments: str) -> dict[str, list[str]]:
    """The configuration that ssh arrives at, which it prints instead of connecting."""
    if shutil.which("ssh") is None:
        pytest.skip("ssh is not installed")
    told = subprocess.run(["ssh", "-G", *arguments], check=True, capture_output=True, text=True).stdout
    found: dict[str, list[str]] = {}
    for line in told.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name, []).append(value)
    return found


async def test_our_proxy_serves_nobody_else(tmp_path: Path, server: GitServer) -> None:
    """While git works, whoever finds the proxy's port lacks its password."""
    answers: list[bytes] = []
    before, port = listening(), server.url.rpartition(":")[2]

    async def look(request: web.Request) -> web.StreamResponse:
        for proxy in listening() - before:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
            writer.write(f"CONNECT inside.example:{port} HTTP/1.1\r\n\r\n".encode())
            answers.append(await reader.readline())
            writer.close()
        return web.Response(status=404)

    server.instead = look
    with pytest.raises(PreconditionFailed):
        await fleet(tmp_path / "home", "inside.example").pin(
            "default", RepoRef(location=f"http://inside.example:{port}/project.git")
        )
    assert answers
    assert all(b" 407 " in answer for answer in answers)
    # It went with the command that it was for.
    assert listening() == before


def listening() -> set[int]:
    """The ports of 127.0.0.1 at which this process accepts connections."""
    held = {os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry.path)}
    found: set[int] = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[1].startswith("0100007F:") and f"socket:[{words[9]}]" in held:
            found.add(int(words[1].partition(":")[2], 16))
    return found


OWN = """
import asyncio, fcntl, socket, struct, sys
from swe_ai_fleet.sandbox.network import PrivateHostError, lookup

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
    address = struct.pack("16sH2s4s8s", b"lo:1", socket.AF_INET, b"", socket.inet_aton(sys.argv[1]), b"")
    fcntl.ioctl(device, 0x8916, address)  # SIOCSIFADDR
    fcntl.ioctl(device, 0x8914, struct.pack("16sH", b"lo", 1))  # SIOCSIFFLAGS: up
for host in sys.argv[1:]:
    try:
        print(*asyncio.run(lookup(host, 443)))
    except PrivateHostError:
        print("refused")
"""


def test_a_public_address_of_this_machine_leads_to_its_own_services() -> None:
    """In a network of its own in which this machine has such an address; the control is the one next to it."""
    unshared = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", OWN, PUBLIC, "93.184.216.35"],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in unshared.stderr:
        pytest.skip("no user namespaces here")
    assert unshared.stdout.split() == ["refused", "93.184.216.35"], unshared.stderr
