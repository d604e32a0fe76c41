"""Images of a registry: who may be asked, what is shown to whom, and what is not believed."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from swe_ai_fleet.adapters.git_workspace import ImageRules, ImageStore, RegistryRules, TenantDisk, mounted_credentials
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, Unavailable
from tests.container_images import MadeImage, digest_of, entry, layer

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
