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
