"""Repositories behind a URL: a real git server over HTTP, with a password."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from swe_ai_fleet.adapters.git_workspace import Credential, GitWorkspaceProvider
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.task import Delivery, RepoRef
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository

PASSWORD = "correct horse"
PATCH = b"--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"


@dataclass(slots=True)
class GitServer:
    """`git http-backend` behind aiohttp. Without the right password everything is 401."""

    root: Path
    url: str = ""
    requests: list[str] = field(default_factory=list[str])

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append(request.path_qs)
        expected = "Basic " + base64.b64encode(f"robot:{PASSWORD}".encode()).decode()
        if request.headers.get("Authorization") != expected:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="git"'})
        variables = {
            "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(self.root), "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": request.method, "PATH_INFO": request.path, "QUERY_STRING": request.query_string,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""), "REMOTE_USER": "robot",
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""), "GIT_CONFIG_NOSYSTEM": "1",
        }  # fmt: skip
        body = await request.read()
        variables["CONTENT_LENGTH"] = str(len(body))
        variables.pop("HTTP_CONTENT_ENCODING")  # aiohttp has already unpacked the body
        process = await asyncio.create_subprocess_exec(
            "git", "http-backend", env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        answer, _ = await process.communicate(body)
        head, _, content = answer.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        status = int(headers.pop("Status", "200").split()[0])
        return web.Response(status=status, headers=headers, body=content)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GitServer]:
    source = make_repository(tmp_path / "source", {"app.py": "a = 1\n"})
    git(source, "tag", "-a", "v1", "-m", "one")
    commit_files(source, {"later.py": "later\n"})
    git(source, "branch", "side", "v1")
    (tmp_path / "served").mkdir()
    git(tmp_path, "clone", "-q", "--bare", str(source), "served/project.git")
    git(tmp_path / "served/project.git", "config", "http.receivepack", "true")
    git(tmp_path, "init", "-q", "--bare", "served/empty.git")
    running = GitServer(root=tmp_path / "served")
    application = web.Application(client_max_size=2**26)
    application.router.add_route("*", "/{path:.*}", running.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    running.url = f"http://{host}:{port}"
    yield running
    await runner.cleanup()


async def find_credential(tenant: str, reference: str) -> Credential | None:
    known = {
        "robot": Credential(username="robot", password=PASSWORD),
        "wrong": Credential(username="robot", password="x"),
    }
    return known.get(reference) if tenant == "default" else None


@pytest.fixture
def provider(tmp_path: Path) -> GitWorkspaceProvider:
    return GitWorkspaceProvider(
        tmp_path / "home",
        Sandbox(SandboxPolicy()),
        protocols=("http", "https"),
        hosts=("127.0.0.1",),
        credentials=find_credential,
        surroundings={"PATH": os.environ["PATH"]},
    )


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


@pytest.mark.parametrize(
    ("options", "kind", "field_name"),
    [
        ({"ref": "missing"}, InvalidRequest, "repo.ref"),
        ({"commit": "0123456789" * 4}, InvalidRequest, "repo.commit"),
        ({"credential": "wrong"}, PreconditionFailed, "repo.credential"),
        ({"credential": ""}, PreconditionFailed, "repo.credential"),
        ({"credential": "unknown"}, InvalidRequest, "repo.credential"),
        ({"name": "missing.git"}, PreconditionFailed, "repo.url"),
        ({"name": "empty.git"}, PreconditionFailed, "repo"),
    ],
)
async def test_what_goes_wrong(
    provider: GitWorkspaceProvider, server: GitServer, options: dict[str, str], kind: type[FleetError], field_name: str
) -> None:
    with pytest.raises(kind) as caught:
        await provider.pin("default", ref(server, **options))
    assert caught.value.field == field_name, caught.value
    assert PASSWORD not in str(caught.value)


async def test_a_server_that_is_down(provider: GitWorkspaceProvider) -> None:
    with pytest.raises(Unavailable) as caught:
        await provider.pin("default", RepoRef(location="http://127.0.0.1:9/a.git"))
    assert caught.value.field == "repo.url"


async def test_a_cached_commit_still_needs_the_right_to_read(provider: GitWorkspaceProvider, server: GitServer) -> None:
    pinned = await provider.pin("default", ref(server))
    for tenant, credential in (("default", "wrong"), ("other", "robot"), ("default", "")):
        with pytest.raises((InvalidRequest, PreconditionFailed)) as caught:
            await provider.pin(tenant, ref(server, commit=pinned.commit, credential=credential))
        assert caught.value.field == "repo.credential"


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
    assert git(cache, "rev-parse", "refs/fleet/delivered/e1") == delivered.commit_sha
    assert git(cache, "show", f"{delivered.commit_sha}:app.py") == "a = 2"


async def test_delivery_with_push(provider: GitWorkspaceProvider, server: GitServer, tmp_path: Path) -> None:
    pinned = await provider.pin("default", ref(server))
    delivery = Delivery(branch="fleet/one", message="One", push=True)
    delivered = await provider.deliver("e1", pinned, PATCH, delivery)
    served = server.root / "project.git"
    assert delivered.pushed
    assert git(served, "rev-parse", "fleet/one", "fleet/one~1").split() == [delivered.commit_sha, pinned.commit]
    assert await provider.deliver("e1", pinned, PATCH, delivery) == delivered
    elsewhere = GitWorkspaceProvider(
        tmp_path / "other-node",
        Sandbox(SandboxPolicy()),
        protocols=("http",),
        hosts=("127.0.0.1",),
        credentials=find_credential,
        surroundings={"PATH": os.environ["PATH"]},
    )
    assert await elsewhere.deliver("e1", pinned, PATCH, delivery) == delivered
    with pytest.raises(PreconditionFailed, match="other content") as caught:
        await provider.deliver("e2", pinned, PATCH.replace(b"+a = 2", b"+a = 3"), delivery)
    assert caught.value.field == "delivery.branch"
    assert git(served, "rev-parse", "fleet/one") == delivered.commit_sha
    kept = "".join(path.read_text(errors="replace") for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert PASSWORD not in kept
