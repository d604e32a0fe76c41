"""Repositories behind a URL: a real git server over HTTP, with a password."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from swe_ai_fleet.adapters.git_workspace import (
    Credential,
    CredentialLookup,
    GitWorkspaceProvider,
    mounted_credentials,
    remote,
)
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.task import Delivery, RepoRef
from swe_ai_fleet.runtime.factories import workspace_provider
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository
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
        surroundings={"PATH": os.environ["PATH"]},
    )


@pytest.fixture
def provider(tmp_path: Path) -> GitWorkspaceProvider:
    return node(tmp_path / "home", find_credential)


def ref(server: GitServer, name: str = "project.git", **options: str) -> RepoRef:
    return RepoRef(location=f"{server.url}/{name}", **({"credential": "robot"} | options))


async def test_references(provider: GitWorkspaceProvider, server: GitServer) -> None:
    source = server.root / "project.git"
    main, first = git(source, "rev-parse", "main", "v1^{commit}").split()
    head = await provider.pin("default", ref(server))
    assert (head.commit, head.branch, head.location) == (main, "main", f"{server.url}/project.git")
    for options in ({"ref": "side"}, {"ref": "v1"}, {"ref": "main~1"}, {"commit": first}, {"commit": first[:9]}):
        pinned = await provider.pin("default", ref(server, **options))
        assert (pinned.commit, pinned.branch) == (first, "side" if options == {"ref": "side"} else "")
        async with provider.open("e1", "a", pinned, Environment()) as clone:
            assert not (clone.root / "later.py").exists()
            found = "".join(
                str(path) + (path.read_text(errors="replace") if path.is_file() else "")
                for path in (clone.root / ".git").rglob("*")
            )
            assert PASSWORD not in found
            assert server.url not in found


async def test_what_goes_wrong(provider: GitWorkspaceProvider, server: GitServer) -> None:
    wrong: tuple[tuple[dict[str, str], type[FleetError], str], ...] = (
        ({"ref": "missing"}, InvalidRequest, "repo.ref"),
        ({"commit": "0123456789" * 4}, InvalidRequest, "repo.commit"),
        ({"credential": "wrong"}, PreconditionFailed, "repo.credential_ref"),
        ({"credential": ""}, PreconditionFailed, "repo.credential_ref"),
        ({"credential": "unknown"}, InvalidRequest, "repo.credential_ref"),
        ({"name": "missing.git"}, PreconditionFailed, "repo.url"),
        ({"name": "empty.git"}, PreconditionFailed, "repo"),
    )
    for options, kind, field in wrong:
        with pytest.raises(kind) as caught:
            await provider.pin("default", ref(server, **options))
        assert caught.value.field == field, caught.value
        assert PASSWORD not in str(caught.value)
    with pytest.raises(Unavailable) as down:
        await provider.pin("default", RepoRef(location="http://127.0.0.1:9/a.git"))
    assert down.value.field == "repo.url"


async def test_a_cached_commit_still_needs_the_right_to_read(provider: GitWorkspaceProvider, server: GitServer) -> None:
    pinned = await provider.pin("default", ref(server))
    for tenant, credential in (("default", "wrong"), ("other", "robot"), ("default", "")):
        with pytest.raises((InvalidRequest, PreconditionFailed)) as caught:
            await provider.pin(tenant, ref(server, commit=pinned.commit, credential=credential))
        assert caught.value.field == "repo.credential_ref"


async def test_delivery_without_push_stays_here(
    provider: GitWorkspaceProvider, server: GitServer, tmp_path: Path
) -> None:
    pinned = await provider.pin("default", ref(server))
    delivery = Delivery(branch="fleet/one", message="One")
    delivered = await provider.deliver("e1", pinned, PATCH, delivery)
    assert not delivered.pushed
    assert await provider.deliver("e1", pinned, PATCH, delivery) == delivered
    assert "fleet" not in git(server.root / "project.git", "branch")
    (cache,) = (tmp_path / "home/repositories").glob("*[0-9a-f]")
    assert git(cache, "for-each-ref", "--format=%(objectname)", "refs/fleet/delivered") == delivered.commit_sha
    assert git(cache, "show", f"{delivered.commit_sha}:app.py") == "a = 2"


async def test_delivery_with_push(provider: GitWorkspaceProvider, server: GitServer, tmp_path: Path) -> None:
    pinned = await provider.pin("default", ref(server))
    delivery = Delivery(branch="fleet/one", message="One", push=True)
    delivered = await provider.deliver("e1", pinned, PATCH, delivery)
    served = server.root / "project.git"
    assert delivered.pushed
    assert git(served, "rev-parse", "fleet/one", "fleet/one~1").split() == [delivered.commit_sha, pinned.commit]
    assert await provider.deliver("e1", pinned, PATCH, delivery) == delivered
    assert await node(tmp_path / "other-node", find_credential).deliver("e1", pinned, PATCH, delivery) == delivered
    with pytest.raises(PreconditionFailed, match="other content") as caught:
        await provider.deliver("e2", pinned, PATCH.replace(b"+a = 2", b"+a = 3"), delivery)
    assert caught.value.field == "delivery.branch"
    assert git(served, "rev-parse", "fleet/one") == delivered.commit_sha
    kept = "".join(path.read_text(errors="replace") for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert PASSWORD not in kept


def test_a_port_is_no_status() -> None:
    words = "fatal: repository 'http://127.0.0.1:40123/missing.git/' not found"
    assert remote._ABSENT.search(words)
    assert not remote._DENIED.search(words)
    assert remote._DENIED.search("The requested URL returned error: 403")


class TestMountedCredentials:
    """Credentials from files, as an operator mounts them: nobody says anything, and private repositories open."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        files = {"username": "robot\n", "password": f"{PASSWORD}\n", "hosts": "127.0.0.1\n"}
        for name, text in files.items():
            place = tmp_path / "credentials" / "default" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        return tmp_path / "credentials"

    def provider(self, tmp_path: Path, directory: Path) -> GitWorkspaceProvider:
        return node(tmp_path / "home", mounted_credentials(directory, by_tenant=True), "localhost")

    async def test_a_private_repository_opens_for_its_tenant(
        self, tmp_path: Path, directory: Path, server: GitServer
    ) -> None:
        provider = self.provider(tmp_path, directory)
        pinned = await provider.pin("default", ref(server, credential=""))
        assert (pinned.credential, len(pinned.commit)) == ("", 40)
        async with provider.open("e1", "a", pinned, Environment()) as clone:
            assert (clone.root / "app.py").read_text() == "a = 1\n"
            found = "".join(file.read_text(errors="replace") for file in clone.root.rglob("*") if file.is_file())
        assert PASSWORD not in found
        with pytest.raises(PreconditionFailed):
            await provider.pin("other", ref(server, credential=""))
        delivery = Delivery(branch="fleet/one", message="One", push=True)
        delivered = await provider.deliver("e1", pinned, PATCH, delivery)
        assert git(server.root / "project.git", "rev-parse", "fleet/one") == delivered.commit_sha
        # A change of the files counts from the next call.
        (directory / "default" / "hosts").write_text("git.example\n")
        with pytest.raises(PreconditionFailed):
            await provider.pin("default", ref(server, credential=""))
        with pytest.raises(PreconditionFailed, match="may not be shown"):
            await provider.pin("default", ref(server, credential="default"))

    @pytest.mark.parametrize("user", ["", "robot@", "x'%20@"])
    async def test_a_redirect_elsewhere_takes_nothing_along(
        self, tmp_path: Path, directory: Path, server: GitServer, user: str
    ) -> None:
        shown: list[str] = []

        async def ask(request: web.Request) -> web.StreamResponse:
            shown.append(request.headers.get("Authorization", ""))
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="git"'})

        async with git_server(tmp_path) as thief:
            thief.instead = ask
            elsewhere = thief.url.replace("://127.0.0.1", f"://{user}localhost")

            async def redirect(request: web.Request) -> web.StreamResponse:
                raise web.HTTPFound(f"{elsewhere}{request.path_qs}")

            server.instead = redirect
            with pytest.raises((PreconditionFailed, Unavailable)):
                await self.provider(tmp_path, directory).pin("default", ref(server, credential="default"))
        # It was followed there, and said nothing.
        assert shown
        assert not any(shown)


async def test_settings_name_the_directory_of_credentials(tmp_path: Path) -> None:
    (tmp_path / "git" / "default").mkdir(parents=True)
    (tmp_path / "git" / "default" / "password").write_text("p")
    provider = workspace_provider(Settings(home=tmp_path / "home", git_credentials=tmp_path / "git", sandbox="none"))
    for reference, kind, words in (
        ("unknown", InvalidRequest, "there is no credential"),
        ("default", PreconditionFailed, "may not be shown"),
    ):
        with pytest.raises(kind, match=words) as caught:
            await provider.pin("default", RepoRef(location="https://git.example/a.git", credential=reference))
        assert caught.value.field == "repo.credential_ref"
