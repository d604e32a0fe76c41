"""`fleet init` as a command: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swe_ai_fleet.cli.main import app

runner = CliRunner()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_shows_a_token_once_says_how_to_go_on_and_looks_at_what_is_there(tmp_path: Path) -> None:
    first = runner.invoke(app, ["init", "fleet", "--tenants", "a, b", "--json"])
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)
    assert sorted(told["tokens"]) == ["a", "b"]
    assert str(tmp_path / "fleet" / "fleet.toml") in told["written"]
    again = runner.invoke(app, ["init", "fleet", "--json"])
    assert json.loads(again.stdout) == {"written": [], "tokens": {}}
    here = runner.invoke(app, ["init", "fleet"]).output
    assert "next: nats-server -c fleet/nats/nats.conf, then\n`fleet --config fleet/fleet.toml up`" in here
    cluster = runner.invoke(app, ["init", "fleet", "--kubernetes"]).output
    assert "next: `kubectl apply -k fleet/kubernetes`, once its namespaces are there" in cluster
    assert "fleet up" not in cluster
    for verb in ("add", "rotate", "revoke"):
        changed = runner.invoke(app, ["access", "token", verb, "x", "--file", "fleet/access.toml"]).output
        assert "after `fleet init fleet` and `kubectl apply -k fleet/kubernetes`" in changed
        assert runner.invoke(app, ["init", "fleet", "--check"]).exit_code == 1
        assert "next: `kubectl apply -k fleet/kubernetes`" in runner.invoke(app, ["init", "fleet"]).output
    assert "has the component fleet/kubernetes/roll" in runner.invoke(app, ["init", "fleet", "--rotate", "ray"]).output
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
