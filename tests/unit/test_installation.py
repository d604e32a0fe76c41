"""What `fleet init` writes, prints and finds: complete, private, made once, and looked over."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.access.access_file import read_access
from swe_ai_fleet.cli.main import app
from swe_ai_fleet.domain.access import AccessRole
from swe_ai_fleet.runtime.installation.authority import days_left, host_names, new_authority, new_certificate, signed_by
from swe_ai_fleet.runtime.installation.installing import ROTATIONS, install
from swe_ai_fleet.runtime.installation.layout import SERVERS, InstallationLayout, check
from swe_ai_fleet.settings import Settings


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_everything_is_private_and_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = InstallationLayout(directory=tmp_path / 'a "quoted" place')
    done = install(layout.directory, tenants=("a", "b"), hosts=("fleet.example.org",), kubernetes=True)
    assert check(layout.directory) == ()
    for path in layout.directory.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert set(done.files_written) == {path for path in layout.directory.rglob("*") if path.is_file()}
    for server in SERVERS:
        certificate = layout.certificate(server).read_text()
        assert signed_by(certificate, layout.authority.read_text())
        hosts = {"localhost", "127.0.0.1", "fleet.example.org", f"fleet-{server}.fleet.svc"}
        assert hosts <= set(host_names(certificate))
        assert not signed_by(certificate, new_authority("test").certificate)
        assert 300 < days_left(certificate) < 398
    # A second time changes nothing, and shows no token.
    before = contents(layout.directory)
    again = install(layout.directory, tenants=("a",))
    assert contents(layout.directory) == before
    assert (again.files_written, again.tokens, list(done.tokens)) == ([], {}, ["a", "b"])
    assert not [token for token in done.tokens.values() for content in before.values() if token.encode() in content]
    monkeypatch.setenv("FLEET_CONFIG", str(layout.directory / "fleet.toml"))
    read = Settings()
    assert (read.access_file, read.nats_issuer_file) == (layout.access, layout.nkey("issuer"))
    assert (read.ray_token, read.home) == (layout.ray_token.read_text().strip(), layout.directory / "home")
    assert read.ray_token in read.secrets


def test_the_access_file_knows_the_tokens_and_keeps_what_people_wrote(tmp_path: Path) -> None:
    done = install(tmp_path, tenants=("a",))
    layout = InstallationLayout(directory=tmp_path)
    with layout.access.open("a") as file:
        file.write('\n# ours\n[[tokens]]\nname = "ci"\ntenant = "a"\nroles = ["submitter"]\n')
        file.write(f'sha256 = "{"0" * 64}"\n')
    done = install(tmp_path, tenants=("b",), rotate=("services",)), done
    tokens = {one.tokens.popitem() for one in done}
    read = read_access(layout.access)
    assert set(read.tenants) == {"default", "a", "b"}
    held = {entry.sha256: entry for entry in read.tokens}
    for tenant, token in tokens:
        entry = held[hashlib.sha256(token.encode()).hexdigest()]
        assert (entry.tenant, entry.roles) == (tenant, {AccessRole.ADMIN})
    service = layout.service_token("gateway").read_text().strip()
    assert held[hashlib.sha256(service.encode()).hexdigest()].roles == {AccessRole.SERVICE}
    assert "# ours" in layout.access.read_text()
    assert len(read.tokens) == 5

    # With an overlap the one before counts as well, until another rotation ends it.
    former = service
    for overlap, counted in ((3_600, 2), (0, 1)):
        install(tmp_path, rotate=("services",), overlap=overlap)
        entries = {entry.name: entry for entry in read_access(layout.access).tokens}
        digests = entries["service:gateway"].digests
        assert digests[0] == hashlib.sha256(layout.service_token("gateway").read_text().strip().encode()).hexdigest()
        assert len(digests) == len(entries["service:orchestrator"].digests) == counted
        assert (hashlib.sha256(former.encode()).hexdigest() in digests) == bool(overlap)
    assert len(entries) == 5 and entries["ci"].digests == ("0" * 64,)
    layout.former.write_text("[]")
    assert [one.file for one in check(tmp_path)] == [layout.accounts]


@pytest.mark.parametrize("what", ROTATIONS)
def test_a_rotation_changes_what_it_names_and_nothing_else(tmp_path: Path, what: str) -> None:
    install(tmp_path, tenants=("a",), hosts=("fleet.example.org",))
    before = contents(tmp_path)
    install(tmp_path, rotate=(what,))
    after = contents(tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    expected = {
        "certificates": {f"tls/{server}{end}.pem" for server in SERVERS for end in ("", "-key")},
        "nats": {
            *(f"nats/{user}.nkey" for user in ("orchestrator", "context", "gateway", "worker", "operator", "sys")),
            "nats/accounts.conf",
        },
        "issuer": {"nats/issuer.nkey", "nats/accounts.conf"},
        "ray": {"secrets/ray-token"},
        "services": {"secrets/orchestrator.token", "secrets/gateway.token", "access.toml"},
        "audit": {"secrets/audit-signing-key.pem", "secrets/audit-public-keys.pem"},
    }[what]
    assert changed == expected
    if what == "audit":
        assert before["secrets/audit-public-keys.pem"] in after["secrets/audit-public-keys.pem"]
    assert check(tmp_path) == ()
    assert "fleet.example.org" in host_names((tmp_path / "tls" / "orchestrator.pem").read_text())


def test_a_look_finds_what_is_missing_open_or_does_not_fit(tmp_path: Path) -> None:
    install(tmp_path, tenants=("a",))
    layout = InstallationLayout(directory=tmp_path)
    other = new_authority("other")
    strange = new_certificate(other, "x", hosts=("localhost",), server=True)
    layout.certificate("context").write_text(strange.certificate)
    layout.key("context").write_text(strange.key)
    layout.certificate("gateway").write_text("nonsense")
    layout.nkey("tenant-a").chmod(0o644)
    layout.accounts.write_text("accounts {}")
    found = {finding.file: finding.fault for finding in check(tmp_path)}
    expected = {
        layout.certificate("context"): "not signed",
        layout.certificate("gateway"): "not a certificate",
        layout.nkey("tenant-a"): "read by others",
        layout.accounts: "does not match",
    }
    assert found.keys() == expected.keys()
    assert [one for one, fault in expected.items() if fault not in found[one]] == []
    layout.ray_token.unlink()
    assert {one.fault for one in check(tmp_path) if one.file == layout.ray_token} == {"is missing"}
    assert len(check(tmp_path / "nowhere")) > 10


def test_the_manifests_hold_what_pods_need_and_no_more(tmp_path: Path) -> None:
    install(tmp_path, tenants=("a",), kubernetes=True)
    layout = InstallationLayout(directory=tmp_path)
    kept = {path.stem: json.loads(path.read_text()) for path in layout.kubernetes.glob("*.json")}
    own = [json.loads(path.read_text()) for path in (layout.kubernetes / "tenants" / "a").glob("*.json")]
    assert {one["metadata"]["namespace"] for one in own} == {"fleet-agents-a"}
    shared = [one for one in kept.values() if one["metadata"]["namespace"] == "fleet-agents"]
    assert sorted(json.dumps(one["data"]) for one in own) == sorted(json.dumps(one["data"]) for one in shared)
    everything = b"".join(base64.b64decode(text) for one in kept.values() for text in one["data"].values())
    for secret in (layout.authority_key, layout.nkey("operator"), layout.nkey("sys"), layout.nkey("tenant-a")):
        assert secret.read_bytes().strip() not in everything
    listed = (layout.kubernetes / "kustomization.yaml").read_text()
    assert all(f"- {name}.json" in listed for name in kept)
    # A cluster is told of what is revoked, and of tenants that leave.
    layout.access.write_text(layout.access.read_text().replace("[tenants.a]", "# nobody revoked\n[tenants.a]"))
    assert {one.file.name for one in check(tmp_path)} == {"fleet-access.json"}
    layout.nkey("tenant-a").unlink()
    install(tmp_path)
    assert check(tmp_path) == ()
    assert {path.parent.name for path in (layout.kubernetes / "tenants").rglob("*.json")} == {"default"}


runner = CliRunner()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_shows_a_token_once_and_looks_at_what_is_there(tmp_path: Path) -> None:
    first = runner.invoke(app, ["init", "fleet", "--tenants", "a, b", "--json"])
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)
    assert sorted(told["tokens"]) == ["a", "b"]
    assert str(tmp_path / "fleet" / "fleet.toml") in told["written"]
    again = runner.invoke(app, ["init", "fleet", "--json"])
    assert json.loads(again.stdout) == {"written": [], "tokens": {}}
    cluster = runner.invoke(app, ["init", "fleet", "--kubernetes"]).output
    assert "next: `kubectl apply -k fleet/kubernetes`" in cluster
    # A changed access file has to be told to the cluster.
    runner.invoke(app, ["access", "token", "add", "x", "--file", "fleet/access.toml"])
    assert runner.invoke(app, ["init", "fleet", "--check"]).exit_code == 1
    runner.invoke(app, ["init", "fleet"])
    assert runner.invoke(app, ["init", "fleet", "--check"]).exit_code == 0
    (tmp_path / "fleet" / "tls" / "nats.pem").unlink()
    looked = runner.invoke(app, ["init", "fleet", "--check", "--json"])
    assert (looked.exit_code, (tmp_path / "fleet" / "tls" / "nats.pem").exists()) == (1, False)
    assert [fault["fault"] for fault in json.loads(looked.stdout)["faults"]] == ["is missing"]
    (tmp_path / "taken").write_text("a file, no directory")
    for words, said in (
        (("fleet", "--rotate", "everything"), "certificates"),
        (("taken/fleet",), f"cannot write {tmp_path / 'taken'}"),
    ):
        refused = runner.invoke(app, ["init", *words])
        assert (refused.exit_code, said in refused.output) == (2, True)
