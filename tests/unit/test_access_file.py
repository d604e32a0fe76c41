"""The access file: what it says, how its faults are told, and what `fleet access` makes of it."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.access.access_file import MAX_BYTES, parse_access, read_access
from swe_ai_fleet.cli.main import app
from swe_ai_fleet.domain.access import AccessRole, Quota, TenantRules
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import ApprovalPolicy
from tests.access_world import token_digest
from tests.tables import table

DIGEST = token_digest("a token")
WHOLE = f"""
# Who comes in.
[tenants.acme]
approval = "risky"
require_verified = true
default_repository = "https://git.example.org/app.git"
model_patience_seconds = 900
agent_endpoints = ["agents.example.org:50060"]

[tenants.acme.quota]
agents = 20
tokens_per_day = 5_000_000
queued = 500
queue_share = 0.5

[tenants.umbrella]

[[tokens]]
name = "ci"
tenant = "acme"
roles = ["submitter", "approver"]
sha256 = "{DIGEST}"
expires = 2027-01-31

# The one of the other team.
[[tokens]]
name = "other"
tenant = "umbrella"
roles = ["admin"]
sha256 = "{token_digest("another")}"

[[jwt]]
issuer = "https://idp.example.org"
audience = "fleet"
jwks = "https://idp.example.org/certs"
algorithms = ["RS256", "EdDSA"]
tenant_claim = "org.tenant"
tenants = {{ "Acme GmbH" = "acme" }}
roles_claim = ["https://example.org/roles"]
role_names = {{ developers = ["submitter"] }}

[[certificates]]
san_uri = "spiffe://example.org/gateway"
name = "gateway"
tenant = "acme"
roles = ["service"]
"""


def test_a_whole_file_is_read() -> None:
    read = parse_access(WHOLE)
    quota = Quota(agents=20, tokens_per_day=5_000_000, queued=500, queue_share=0.5)
    assert read.rules() == {
        "acme": TenantRules(
            tenant="acme",
            quota=quota,
            approval=ApprovalPolicy.RISKY,
            require_verified=True,
            default_repository="https://git.example.org/app.git",
            model_patience_seconds=900,
            agent_endpoints=("agents.example.org:50060",),
        ),
        "umbrella": TenantRules(tenant="umbrella"),
    }
    [ci, other], [issuer], [certificate] = read.tokens, read.jwt, read.certificates
    roles = {AccessRole.SUBMITTER, AccessRole.APPROVER}
    assert (ci.name, ci.tenant, ci.roles, ci.sha256) == ("ci", "acme", roles, DIGEST)
    assert (str(ci.expires), other.expires) == ("2027-01-31", None)
    assert issuer.role_names == {"developers": {AccessRole.SUBMITTER}}
    assert issuer.roles_claim == ("https://example.org/roles",)
    assert certificate.roles == {AccessRole.SERVICE}


@table(
    ("old", "new", "field"),
    [
        ('"submitter", ', '"boss", ', "tokens[0].roles"),
        ('roles = ["admin"]', "roles = []", "tokens[1].roles"),
        ("agents = 20", "agents = -1", "tenants.acme.quota.agents"),
        ("queue_share = 0.5", "queue_share = 1.5", "tenants.acme.quota.queue_share"),
        (":50060", "", "tenants.acme.agent_endpoints"),
        ("[tenants.umbrella]", "", "tokens[1].tenant"),
        (DIGEST, DIGEST.upper(), "tokens[0].sha256"),
        (DIGEST, token_digest("another"), "tokens[1].sha256"),
        ('name = "other"', 'name = "ci"', "tokens[1].name"),
        (
            'name = "ci"\n',
            f'name = "ci"\nprevious_sha256 = "{token_digest("another")}"\nprevious_expires = 2027-01-01\n',
            "tokens[1].sha256",
        ),
        ('"RS256", ', '"none", ', "jwt[0].algorithms[0]"),
        ("https://idp.example.org/certs", "http://idp.example.org/certs", "jwt[0].jwks"),
        ('tenant_claim = "org.tenant"', 'tenant_claim = "t"\ntenant = "acme"', "jwt[0]"),
        ('= "acme" }', '= "nobody" }', "jwt[0].tenant"),
        ("san_uri =", 'common_name = "x"\nsan_uri =', "certificates[0]"),
    ],
)
def test_a_fault_names_its_table_and_field(old: str, new: str, field: str) -> None:
    assert old in WHOLE
    with pytest.raises(InvalidRequest) as fault:
        parse_access(WHOLE.replace(old, new, 1))
    assert fault.value.field == field
    assert field in str(fault.value)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    for content in (None, b"\xff", b"", b"[tenants]", b"a" * (MAX_BYTES + 1), b"a = " + b"[" * 100_000):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InvalidRequest):
            read_access(path)


def test_the_command_makes_lists_and_revokes_tokens_and_all_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["access", *words, "--file", str(path)])
        return done.exit_code, done.stdout or done.output

    code, out = run("token", "add", "ci")
    assert code == 0 and out.startswith("fleet_") and len(out.strip()) >= 48
    [entry] = read_access(path).tokens
    assert (entry.sha256, entry.roles) == (token_digest(out.strip()), {AccessRole.SUBMITTER})
    days = (entry.expires - datetime.now(UTC)).total_seconds() / 86_400
    assert 89.9 < days < 90.1 and stat.S_IMODE(path.stat().st_mode) == 0o600
    code, out = run("token", "add", "ada", "--role", "admin", "--role", "viewer", "--expires", "never", "--json")
    told = json.loads(out)
    assert (told["name"], told["roles"], told["expires"]) == ("ada", ["admin", "viewer"], None)
    listed = json.loads(run("token", "list", "--json")[1])["tokens"]
    assert [(one["name"], one["expired"]) for one in listed] == [("ci", False), ("ada", False)]
    # What people wrote stays as they wrote it.
    path.write_text(WHOLE)
    assert run("token", "add", "new", "--tenant", "umbrella", "--role", "viewer", "--expires", "2099-05-01")[0] == 0
    assert path.read_text().startswith(WHOLE.rstrip())
    assert run("token", "revoke", "new")[0] == 0
    assert read_access(path) == parse_access(WHOLE)
    for words, said in (
        (("revoke", "nobody"), "nobody"),
        (("add", "ci", "--tenant", "acme"), "ci"),
        (("add", "x", "--tenant", "no"), "no"),
        (("add", "x", "--role", "boss"), "boss"),
        (("add", "x", "--expires", "2020-01-01"), "2020"),
    ):
        code, out = run("token", *words)
        assert (code, said in out) == (2, True), (words, out)
    assert run("token", "revoke", "ci")[0] == 0
    left = path.read_text()
    assert [one.name for one in read_access(path).tokens] == ["other"]
    assert all(kept in left for kept in ("# Who comes in.", "# The one of the other team.", "[[jwt]]"))
    # Rotation: one name, two tokens for a while, all else as it was; revoking takes both.
    path.write_text(WHOLE)
    assert run("token", "rotate", "nobody")[0] == 2 and run("token", "rotate", "other", "--overlap", "1y")[0] == 2
    code, out = run("token", "rotate", "other", "--overlap", "2h", "--expires", "2099-05-01", "--json")
    told = json.loads(out)
    ci, other = read_access(path).tokens
    assert (ci, other.roles, other.tenant) == (parse_access(WHOLE).tokens[0], {AccessRole.ADMIN}, "umbrella")
    assert other.digests == (token_digest(told["token"]), token_digest("another"))
    left = (other.previous_expires - datetime.now(UTC)).total_seconds()
    assert 7_100 < left <= 7_200 and told["previous_expires"] and "2099-05-01" in told["expires"]
    assert "the one before until" in run("token", "list")[1]
    assert {line for line in WHOLE.splitlines() if "sha256" not in line} <= set(path.read_text().splitlines())
    code, out = run("token", "rotate", "other")
    assert code == 2 and "rotated before" in out and read_access(path).tokens[1] == other
    code, out = run("token", "rotate", "other", "--overlap", "0")
    other = read_access(path).tokens[1]
    assert code == 0 and other.digests == (token_digest(out.strip().splitlines()[-1]),)
    # The one before never outlives its own end.
    path.write_text(WHOLE.replace("2027-01-31", f"{datetime.now(UTC) + timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}"))
    assert run("token", "rotate", "ci", "--overlap", "2d")[0] == 0
    assert (read_access(path).tokens[0].previous_expires - datetime.now(UTC)).total_seconds() < 301
    path.write_text("broken")
    assert run("check")[0] == 2
