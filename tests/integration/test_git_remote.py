"""Repositories behind a URL: a real git server over HTTP, with a password."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from swe_ai_fleet.adapters.git_workspace import Credential, CredentialLookup, GitWorkspaceProvider, mounted_credentials
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.task import Delivery, RepoRef
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository, write_files
from tests.git_server import PASSWORD, GitServer, git_server, served_copy

PATCH = b"--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GitServer]:
    source = make_repository(tmp_path / "source", {"app.py": "a = 1\n"})
    git(source, "tag", "-a", "v1", "-m", "one")
    commit_files(source, {"later.py": "later\n"})
    git(source, "branch", "side", "v1")
    served_copy(source, tmp_path / "served")
    git(tmp_path, "init", "-q", "--bare", "served/empty.git")
    async with git_server(tmp_path / "served") as running:
        yield running


async def find_credential(tenant: str, reference: str, location: str) -> Credential | None:
    known = {
        "robot": Credential(username="robot", password=PASSWORD),
        "wrong": Credential(username="robot", password="x"),
    }
    return known.get(reference) if tenant == "default" else None


def node(home: Path, credentials: CredentialLookup, *hosts: str) -> GitWorkspaceProvider:
    return GitWorkspaceProvider(
        home,
        Sandbox(SandboxPolicy()),
        protocols=("http", "https"),
        hosts=("127.0.0.1", *hosts),
        credentials=credentials,
        environ={"PATH": os.environ["PATH"]},
    )


@pytest.fixture
def provider(tmp_path: Path) -> GitWorkspaceProvider:
    return node(tmp_path / "home", find_credential)


def ref(server: GitServer, name: str = "project.git", **options: str) -> RepoRef:
    return RepoRef(location=f"{server.url}/{name}", **({"credential": "robot"} | options))


async def test_what_goes_wrong(provider: GitWorkspaceProvider, server: GitServer) -> None:
    # A commit that is cached still needs the right to read.
    commit = (await provider.pin("default", ref(server))).commit
    wrong: tuple[tuple[dict[str, str], type[FleetError], str], ...] = (
        ({"ref": "missing"}, InvalidRequest, "repo.ref"),
        ({"commit": "0123456789" * 4}, InvalidRequest, "repo.commit"),
        ({"commit": commit, "credential": "wrong"}, PreconditionFailed, "repo.credential_ref"),
        ({"commit": commit, "credential": ""}, PreconditionFailed, "repo.credential_ref"),
        ({"credential": "unknown"}, InvalidRequest, "repo.credential_ref"),
        # A number in a name is no status.
        ({"name": "missing-40123.git"}, PreconditionFailed, "repo.url"),
        ({"name": "empty.git"}, PreconditionFailed, "repo"),
    )
    for options, kind, field in wrong:
        with pytest.raises(kind) as caught:
            await provider.pin("default", ref(server, **options))
        assert caught.value.field == field, caught.value
        assert PASSWORD not in str(caught.value)
    with pytest.raises(InvalidRequest):
        await provider.pin("other", ref(server, commit=commit))
    with pytest.raises(Unavailable) as down:
        await provider.pin("default", RepoRef(location="http://127.0.0.1:9/a.git"))
    assert down.value.field == "repo.url"


async def test_delivery(provider: GitWorkspaceProvider, server: GitServer, tmp_path: Path) -> None:
    pinned, served = await provider.pin("default", ref(server)), server.root / "project.git"
    delivery = Delivery(branch="fleet/one", message="One", push=True)
    here = await provider.deliver("e1", pinned, PATCH, replace(delivery, push=False))
    assert not here.pushed and "fleet" not in git(served, "branch")
    (cache,) = (tmp_path / "home/repositories").glob("*[0-9a-f]")
    assert git(cache, "show", f"{here.commit_sha}:app.py") == "a = 2"
    delivered = await provider.deliver("e1", pinned, PATCH, delivery)
    assert delivered.pushed
    assert git(served, "rev-parse", "fleet/one", "fleet/one~1").split() == [delivered.commit_sha, pinned.commit]
    assert await provider.deliver("e1", pinned, PATCH, delivery) == delivered
    assert await node(tmp_path / "other-node", find_credential).deliver("e1", pinned, PATCH, delivery) == delivered
    with pytest.raises(PreconditionFailed, match="different content") as caught:
        await provider.deliver("e2", pinned, PATCH.replace(b"+a = 2", b"+a = 3"), delivery)
    assert caught.value.field == "delivery.branch"
    assert git(served, "rev-parse", "fleet/one") == delivered.commit_sha
    kept = "".join(path.read_text(errors="replace") for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert PASSWORD not in kept


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Credentials from files, as an operator mounts them: nobody says anything, and private repositories open."""
    files = {"username": "robot\n", "password": f"{PASSWORD}\n", "hosts": "127.0.0.1\n"}
    write_files(tmp_path / "credentials/default", files)
    return tmp_path / "credentials"


def mounted(directory: Path) -> GitWorkspaceProvider:
    return node(directory.parent / "home", mounted_credentials(directory, by_tenant=True), "localhost")


async def test_a_private_repository_opens_for_its_tenant(directory: Path, server: GitServer) -> None:
    provider, nobody = mounted(directory), ref(server, credential="")
    pinned = await provider.pin("default", nobody)
    assert (pinned.credential, len(pinned.commit)) == ("", 40)
    async with provider.open("e1", "a", pinned, Environment()) as clone:
        assert (clone.root / "app.py").read_text() == "a = 1\n"
        found = "".join(file.read_text(errors="replace") for file in clone.root.rglob("*") if file.is_file())
    assert PASSWORD not in found
    with pytest.raises(PreconditionFailed):
        await provider.pin("other", nobody)
    assert (await provider.deliver("e1", pinned, PATCH, Delivery(branch="fleet/one", push=True))).pushed
    # A change of the files counts from the next call.
    (directory / "default" / "hosts").write_text("git.example\n")
    with pytest.raises(PreconditionFailed):
        await provider.pin("default", nobody)
    with pytest.raises(PreconditionFailed, match="may not be shown"):
        await provider.pin("default", ref(server, credential="default"))


async def test_a_redirect_elsewhere_takes_nothing_along(directory: Path, server: GitServer) -> None:
    shown: list[str] = []

    async def ask(request: web.Request) -> web.StreamResponse:
        shown.append(request.headers.get("Authorization", ""))
        return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="git"'})

    async def redirect(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(f"{elsewhere}{request.path_qs}")

    server.instead = redirect
    async with git_server(directory) as thief:
        thief.instead = ask
        for number, user in enumerate(("", "robot@", "x'%20@")):
            elsewhere = thief.url.replace("://127.0.0.1", f"://{user}localhost")
            with pytest.raises((PreconditionFailed, Unavailable)):
                await mounted(directory).pin("default", ref(server, credential="default"))
            # It was followed there, and said nothing.
            assert len(shown) > number and not any(shown)


async def test_a_credential_is_shown_to_its_hosts_only(tmp_path: Path) -> None:
    for name, text in {
        "username": "robot\n", "password": "p\n", "hosts": "git.example, *.corp.example",
        "blue.password": "b", "blue.hosts": "blue.example",
        "loose.password": "l", "ssh-privatekey": "k\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)

    def at(url: str, reference: str = "default", hosts: tuple[str, ...] = ()) -> Awaitable[Credential | None]:
        return mounted_credentials(tmp_path, hosts=hosts)("t", reference, url)

    found = await at("https://git.example/a")
    assert found == Credential(username="robot", password="p") and "password" not in repr(found)
    # Over ssh a key takes the place of the password, for the same hosts.
    assert await at("git@x.corp.example:a/b.git") == await at("ssh://git.example/a") == Credential(key="k")
    assert await at("ssh://git@blue.example/a", "blue") is None
    with pytest.raises(PreconditionFailed, match="may not be shown"):
        await at("git@evil.example:a/b.git")
    assert await at("https://blue.example/a", "blue") == Credential(username="git", password="b")
    for url, reference in (
        ("https://evil.example/git.example", "default"),
        ("https://git.example@evil.example/a", "default"),
        ("https://git.example.evil.example/a", "default"),
        ("https://git.example/a", "blue"),
        ("https://git.example/a", "loose"),
    ):
        with pytest.raises(PreconditionFailed, match="may not be shown"):
            await at(url, reference, hosts=("*",))
    assert await at("https://git.example/a", "none") is None
    with pytest.raises(InvalidRequest):
        await at("https://git.example/a", "../../etc")
    # A repository that names none gets the default where its host may see it, and else none.
    assert await at("https://git.example/a", "") == found
    assert await at("https://evil.example/a", "") is None
    assert await at("https://git.example/a", "loose", hosts=("git.example",)) is not None


async def test_a_tenant_has_the_credentials_of_its_own_directory(tmp_path: Path) -> None:
    for name, text in {"one/password": "p", "one/hosts": "git.example", "password": "q", "hosts": "*"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    lookup = mounted_credentials(tmp_path, by_tenant=True)
    assert await lookup("one", "", "https://git.example/a") == Credential(username="git", password="p")
    assert await lookup("two", "", "https://git.example/a") is None
    for tenant in ("..", ".", "one/..", ""):
        with pytest.raises(InvalidRequest):
            await lookup(tenant, "", "https://git.example/a")
