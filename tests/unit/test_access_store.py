"""Who is known by what they show: tokens, JWTs, certificates, and a file that changes meanwhile."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from structlog.testing import capture_logs

from services.access.store import AccessStore, open_access
from services.auth import Admission, Presented
from services.errors import Unauthenticated
from services.roles import check_role, role_for
from swe_ai_fleet.domain.access import SOLE, AccessRole, Principal, Quota, TenantRules
from swe_ai_fleet.domain.errors import InvalidRequest, PermissionDenied, Unavailable
from swe_ai_fleet.domain.task import ApprovalPolicy
from swe_ai_fleet.settings import Settings
from tests.access_world import AccessWorld, Authority, claims, jwk, token_entry

SUBMIT = "/fleet.orchestrator.v1.OrchestratorService/SubmitTask"
GATEWAY = x509.UniformResourceIdentifier("spiffe://example.org/gateway")
BUILDER = x509.DNSName("builder.example.org")
CERTIFICATES = """
[[certificates]]
name = "gateway"
tenant = "acme"
roles = ["service"]
san_uri = "spiffe://example.org/gateway"
[[certificates]]
name = "builder"
tenant = "acme"
roles = ["submitter"]
san_dns = "builder.example.org"
[[certificates]]
name = "old"
tenant = "umbrella"
roles = ["viewer"]
common_name = "old.example.org"
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> AccessWorld:
    return AccessWorld(folder=tmp_path_factory.mktemp("access"))


@pytest.fixture
async def store(world: AccessWorld) -> AccessStore:
    world.write()
    return await AccessStore.open(world.path)


async def known(store: AccessStore, token: str) -> Admission:
    return await store.authenticate(Presented(authorization=[f"Bearer {token}"]))


# Tokens and what the file says of them


async def test_a_token_holds_until_its_end(world: AccessWorld) -> None:
    now = 1_750_000_000.0
    soon = token_entry("soon", "a-token", tenant="acme", role="viewer", expires="2027-01-31T12:00:00Z")
    world.write(more=soon)
    store = await AccessStore.open(world.path, clock=lambda: now)
    admission = await known(store, "a-token")
    assert admission.expires == 1_801_396_800.0
    now = admission.expires - 1
    assert (await known(store, "a-token")).principal.name == "soon"
    now = admission.expires
    with pytest.raises(Unauthenticated):
        await known(store, "a-token")


async def test_no_claim_leads_to_a_tenant_that_the_file_does_not_name(world: AccessWorld) -> None:
    store = await AccessStore.open(world.path, local="the-local-token")
    tenants = ("acme", "default", "initech")
    tokens = {tenant: world.jwt(org={"tenant": tenant}, realm={"roles": ["admin"]}) for tenant in tenants}
    assert (await known(store, tokens["acme"])).principal.tenant == "acme"
    for tenant in ("default", "initech"):
        with pytest.raises(PermissionDenied, match="there is no tenant"):
            await known(store, tokens[tenant])
    # This machine's own token is the default tenant's all the same, and so is every other tenant's that the file names.
    assert (await known(store, "the-local-token")).principal.tenant == "default"
    world.write(more="[tenants.default]\n")
    assert (await known(store, tokens["default"])).principal.tenant == "default"


async def test_settings_choose_between_a_file_and_one_token(world: AccessWorld, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    with capture_logs() as logs:
        one = await open_access(settings, "the-token")
        assert logs == []
        shown = ["Bearer the-token"]
        assert await one.authenticate(Presented(authorization=shown)) == Admission(principal=SOLE)
        named = await one.authenticate(Presented(authorization=shown, tenants=["acme"], callers=["ada"]))
        assert (named.principal.tenant, named.principal.name, named.principal.sole) == ("acme", "", True)
        with pytest.raises(InvalidRequest):
            await one.authenticate(Presented(authorization=shown, tenants=["A"]))
        await open_access(settings.model_copy(update={"listen": "0.0.0.0:50055"}), "the-token")
        await open_access(settings.model_copy(update={"listen": "0.0.0.0:50055", "access_file": world.path}), "x")
    assert [log["log_level"] for log in logs] == ["warning"] * 3
    store = await open_access(settings.model_copy(update={"access_file": world.path}), "the-token")
    local = (await store.authenticate(Presented(authorization=["Bearer the-token"]))).principal
    assert (local.tenant, local.name, local.sole) == ("default", "local", False)
    assert local.may(AccessRole.ADMIN) and local.may(AccessRole.SERVICE)
    with pytest.raises(InvalidRequest):
        await open_access(settings.model_copy(update={"access_file": tmp_path / "missing.toml"}), "the-token")


def test_a_method_without_a_row_takes_an_admin() -> None:
    assert role_for("/fleet.context.v1.ContextService/Recall") is AccessRole.VIEWER
    assert role_for("/fleet.future.v1.FutureService/Anything") is AccessRole.ADMIN
    with pytest.raises(PermissionDenied, match="'admin'"):
        check_role(Principal(tenant="t", roles=frozenset({AccessRole.APPROVER})), "some.Service.Method")
    check_role(SOLE, "some.Service.Method")
    for role in (AccessRole.SUBMITTER, AccessRole.SERVICE):
        check_role(Principal(tenant="t", roles=frozenset({role})), SUBMIT)
    for roles, told in (({AccessRole.VIEWER, AccessRole.APPROVER}, "approver, viewer"), (set(), "none")):
        with pytest.raises(PermissionDenied, match="'submitter'") as refused:
            check_role(Principal(tenant="t", roles=frozenset(roles)), SUBMIT)
        assert refused.value.field == "authorization"
        assert refused.value.hint.startswith(f"your roles: {told};")


async def test_only_the_local_token_makes_a_local_admin(world: AccessWorld) -> None:
    world.write()
    store = await AccessStore.open(world.path, local="made-here")
    local = (await known(store, "made-here")).principal
    assert (local.name, local.may(AccessRole.SERVICE)) == ("local", True)
    assert (await known(store, world.tokens["acme-viewer"])).principal.name == "acme-viewer"
    with pytest.raises(Unauthenticated):
        await known(store, "made-elsewhere")
    for shown in ("made-here", "Basic made-here", "Bearer"):
        with pytest.raises(Unauthenticated):
            await store.authenticate(Presented(authorization=[shown]))
    with pytest.raises(ValueError, match="must not be empty"):
        AccessStore(world.path, local="")
    # Nor does it call for a tenant that the file does not name.
    with pytest.raises(PermissionDenied, match="there is no tenant 'initech'") as refused:
        await store.authenticate(Presented(authorization=["Bearer made-here"], tenants=["initech"]))
    assert refused.value.field == "tenant"


# A file that changes


async def test_a_changed_file_counts_from_the_next_call_on_and_is_read_once(
    world: AccessWorld, store: AccessStore
) -> None:
    token, before = world.tokens["acme-viewer"], store.rules("acme")
    assert before == TenantRules(tenant="acme", quota=Quota(agents=4, queue_share=0.5), approval=ApprovalPolicy.PLAN)
    assert (await store.authenticate(Presented(authorization=[f"bearer {token}".encode()]))).principal == Principal(
        tenant="acme", name="acme-viewer", roles=frozenset({AccessRole.VIEWER})
    )
    world.write(without="acme-viewer", more=token_entry("new", "a-new-token", tenant="umbrella", role="viewer"))
    with capture_logs() as logs:
        found = await asyncio.gather(*(known(store, "a-new-token") for _ in range(50)))
    assert {one.principal.name for one in found} == {"new"}
    assert [(log["path"], log["tenants"]) for log in logs] == [(str(world.path), 2)]
    with pytest.raises(Unauthenticated):
        await known(store, token)
    # A tenant that is gone keeps its rules and has nobody.
    world.path.write_text("[tenants.umbrella]\n")
    with pytest.raises(Unauthenticated):
        await known(store, world.tokens["acme-admin"])
    assert (store.tenants, store.rules("acme"), store.rules("nobody")) == (
        ("umbrella",),
        before,
        TenantRules(tenant="nobody"),
    )
    world.write()
    assert (await known(store, token)).principal.name == "acme-viewer"


async def test_a_broken_version_changes_nothing_and_is_told_once(world: AccessWorld, store: AccessStore) -> None:
    good, token = world.path.read_text(), world.tokens["acme-viewer"]
    with capture_logs() as logs:
        for broken in ('[tenants.acme]\napproval = "x"\n', "", None):
            world.path.unlink() if broken is None else world.path.write_text(broken)
            for _ in range(3):
                assert (await known(store, token)).principal.name == "acme-viewer"
            assert store.fault
    assert [log["log_level"] for log in logs] == ["error"] * 3
    assert (logs[0]["field"], logs[0]["path"]) == ("tenants.acme.approval", str(world.path))
    world.path.write_text(good)
    await known(store, token)
    assert store.fault == ""


async def test_rules_and_tenants_change_though_nobody_calls(
    world: AccessWorld, store: AccessStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.path.write_text('[tenants.acme]\napproval = "every"\n[tenants.initech]\n')
    # Who asks for rules often does not look each time.
    assert store.rules("acme").approval is ApprovalPolicy.PLAN
    monkeypatch.setattr("services.access.store.LOOK_SECONDS", 0.0)
    assert store.rules("acme").approval is ApprovalPolicy.EVERY
    assert store.tenants == ("acme", "initech")
    with capture_logs() as logs:
        world.path.write_text("[")
        async with asyncio.timeout(10):
            while not store.fault:
                assert store.rules("acme").approval is ApprovalPolicy.EVERY
                await asyncio.sleep(0)
        assert store.rules("acme").approval is ApprovalPolicy.EVERY
    assert [log["log_level"] for log in logs] == ["error"]
    # Nobody waits for a large file to be read.
    monkeypatch.setattr("services.access.store.AT_ONCE_BYTES", 0)
    world.path.write_text("[tenants.initech]\n")
    assert "acme" in store.tenants
    async with asyncio.timeout(10):
        while "acme" in store.tenants:
            await asyncio.sleep(0.01)


# JWTs


async def test_no_stranger_has_a_token(world: AccessWorld, store: AccessStore) -> None:
    for what, token in world.strangers().items():
        with pytest.raises(Unauthenticated) as refused:
            await known(store, token)
        assert refused.value.message == "invalid or missing token", what


async def test_a_jwt_names_tenant_roles_and_name(world: AccessWorld, store: AccessStore) -> None:
    told = claims(realm={"roles": ["viewer", "approver", "offline_access"]}, org={"tenant": "umbrella"})
    admission = await known(store, jwt.encode(told, world.rsa_signer, "RS256", headers={"kid": "rsa-1"}))
    assert admission.principal == Principal(
        tenant="umbrella", name="ada", roles=frozenset({AccessRole.VIEWER, AccessRole.APPROVER})
    )
    assert admission.expires == told["exp"] + 10


async def test_claims_are_translated(world: AccessWorld) -> None:
    world.write()
    text = world.path.read_text()
    world.path.write_text(
        text.replace(
            'tenant_claim = "org.tenant"\nroles_claim = "realm.roles"',
            'tenant_claim = ["https://example.org/tenant"]\ntenants = { "Acme GmbH" = "acme" }\nroles = ["viewer"]\n'
            'roles_claim = "groups"\nrole_names = { "fleet admins" = ["admin", "service"] }\nname_claim = "email"\n'
            'name_prefix = "idp:"',
        )
    )
    store = await AccessStore.open(world.path)
    told = {"https://example.org/tenant": "Acme GmbH", "email": "ada@example.org", "groups": ["fleet admins", "admin"]}
    who = (await known(store, world.jwt(**told))).principal
    assert (who.tenant, who.name) == ("acme", "idp:ada@example.org")
    assert who.roles == {AccessRole.VIEWER, AccessRole.ADMIN, AccessRole.SERVICE}
    # A name that is not translated is not taken as it stands.
    plain = (await known(store, world.jwt(**told | {"groups": ["admin"]}))).principal
    assert plain.roles == {AccessRole.VIEWER}
    with pytest.raises(Unauthenticated):
        await known(store, world.jwt(**told | {"https://example.org/tenant": "acme"}))


# Keys


@dataclass(kw_only=True)
class KeyServer:
    """Serves keys over https."""

    url: str = ""
    answer: bytes = b""
    status: int = 200
    asked: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        head = f"HTTP/1.1 {self.status} x\r\ncontent-length: {len(self.answer)}\r\nlocation: {self.url}\r\n"
        writer.write(head.encode() + b"connection: close\r\n\r\n" + self.answer)
        writer.close()


@asynccontextmanager
async def key_server(folder: Path) -> AsyncIterator[KeyServer]:
    authority, served = Authority(), KeyServer()
    certificate, secret = authority.issue("127.0.0.1", x509.IPAddress(ip_address("127.0.0.1")))
    (folder / "ca.pem").write_bytes(authority.pem)
    (folder / "server.pem").write_bytes(certificate + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0, ssl=context)
    async with server:
        served.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
        yield served


async def test_keys_from_a_url_are_kept_and_asked_for_sparingly(
    world: AccessWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write()
    path, text = tmp_path / "access.toml", world.path.read_text()
    async with key_server(tmp_path) as served:
        first, second = jwk(world.signer, "ec-1", "ES256"), jwk(world.stranger, "two", "ES256")
        theirs = jwt.encode(claims(), world.stranger, "ES256", headers={"kid": "two"})
        # A place that was never there is told apart from a wrong token; without the authority it is nobody's.
        for place in (f'"{served.url}"', '"missing.json"'):
            path.write_text(text.replace('"keys.json"', place))
            with capture_logs(), pytest.raises(Unavailable):
                await known(await AccessStore.open(path), world.jwt())
        path.write_text(text.replace('"keys.json"', f'"{served.url}"\nca = "ca.pem"'))
        served.answer = json.dumps({"keys": [first]}).encode()
        store = await AccessStore.open(path)
        assert {one.principal.name for one in await asyncio.gather(*(known(store, world.jwt()) for _ in range(20)))}
        served.answer = json.dumps({"keys": [first, second]}).encode()
        for _ in range(3):
            with pytest.raises(Unauthenticated):
                await known(store, theirs)
        assert served.asked == 1, "too soon for another request"
        monkeypatch.setattr("services.access.tokens.LEAST_SECONDS", 0.0)
        assert (await known(store, theirs)).principal.name == "ada"
        # While the place has nothing, what is known goes on counting.
        symmetric = json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}).encode()
        answers = [(200, text) for text in (b"", b'{"keys": [1]}', b"[" * 100_000, b"\xff", symmetric, b"x" * 300_000)]
        monkeypatch.setattr("services.access.tokens.FRESH_SECONDS", -1.0)
        with capture_logs() as logs:
            for served.status, served.answer in [*answers, (503, b""), (302, b""), (200, b"{}")]:
                assert (await known(store, theirs)).principal.name == "ada"
        assert [log["log_level"] for log in logs] == ["error"] * 9
        # A key that was withdrawn is no key.
        served.status, served.answer = 200, json.dumps({"keys": [first]}).encode()
        with pytest.raises(Unauthenticated):
            await known(store, theirs)


# Certificates


async def test_a_certificate_is_its_owners(world: AccessWorld) -> None:
    world.write()
    assert not (await AccessStore.open(world.path)).takes_certificates
    world.write(more=CERTIFICATES)
    store, authority = await AccessStore.open(world.path), Authority()
    assert store.takes_certificates

    async def name(certificate: bytes) -> str:
        try:
            admission = await store.authenticate(Presented(certificate=certificate))
        except Unauthenticated:
            return ""
        assert len(admission.principal.roles) == 1 and admission.expires > time.time()
        return admission.principal.name

    for common_name, names, owner in (
        ("x", (GATEWAY,), "gateway"),
        ("x", (BUILDER,), "builder"),
        ("old.example.org", (), "old"),
        ("old.example.org", (BUILDER,), "builder"),
        ("builder.example.org", (), ""),
        # A name of one kind is none of another.
        ("x", (x509.DNSName("old.example.org"),), ""),
    ):
        assert await name(authority.issue(common_name, *names)[0]) == owner, (common_name, names)
    assert await name(authority.issue("old.example.org", days=-1)[0]) == ""
    for nothing in (b"", b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n", b"x" * 100_000):
        assert await name(nothing) == ""


@pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits")
async def test_a_short_rsa_key_is_no_key(world: AccessWorld, tmp_path: Path) -> None:
    short = rsa.generate_private_key(65537, 1024)
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [jwk(short, "short", "RS256")]}))
    (tmp_path / "access.toml").write_text(world.path.read_text())
    store = await AccessStore.open(tmp_path / "access.toml")
    with pytest.raises(Unauthenticated):
        await known(store, jwt.encode(claims(), short, "RS256", headers={"kid": "short"}))


async def test_claims_that_name_nobody_and_roles_that_are_none(world: AccessWorld, store: AccessStore) -> None:
    names = ({"sub": "two words"}, {"sub": "x" * 65}, {"sub": ""}, {"sub": 7})
    for told in (*names, {"org": "acme"}, {"org": {"tenant": ["acme"]}}, {"org": [{"tenant": "acme"}]}):
        with pytest.raises(Unauthenticated):
            await known(store, world.jwt(**told))
    for roles in (None, "submitter", {"submitter": True}, ["SUBMITTER"], ["service"], [["admin"]], 7):
        found = (await known(store, world.jwt(realm={"roles": roles}))).principal.roles
        assert found == (frozenset({AccessRole.SUBMITTER}) if roles == "submitter" else frozenset()), roles
