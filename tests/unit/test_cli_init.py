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


def test_it_shows_a_token_once_and_then_finds_nothing_to_do(tmp_path: Path) -> None:
    first = runner.invoke(app, ["init", "fleet", "--tenants", "a, b", "--json"])
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)
    assert sorted(told["tokens"]) == ["a", "b"]
    assert str(tmp_path / "fleet" / "fleet.toml") in told["written"]
    again = runner.invoke(app, ["init", "fleet", "--json"])
    assert json.loads(again.stdout) == {"written": [], "tokens": {}}


def test_a_look_ends_with_1_where_something_is_wrong(tmp_path: Path) -> None:
    assert runner.invoke(app, ["init", "fleet"]).exit_code == 0
    assert runner.invoke(app, ["init", "fleet", "--check"]).exit_code == 0
    (tmp_path / "fleet" / "tls" / "nats.pem").unlink()
    looked = runner.invoke(app, ["init", "fleet", "--check", "--json"])
    assert looked.exit_code == 1
    assert [fault["fault"] for fault in json.loads(looked.stdout)["faults"]] == ["is missing"]
    assert not (tmp_path / "fleet" / "tls" / "nats.pem").exists()


def test_it_says_how_to_go_on_here_and_on_kubernetes() -> None:
    here = runner.invoke(app, ["init", "fleet"]).output
    assert "next: nats-server -c fleet/nats/nats.conf, then\n`fleet --config fleet/fleet.toml up`" in here
    cluster = runner.invoke(app, ["init", "fleet", "--kubernetes"]).output
    assert "next: `kubectl apply -k fleet/kubernetes`, once its namespaces are there" in cluster
    assert "fleet up" not in cluster


def test_what_it_cannot_do_is_told_by_its_name(tmp_path: Path) -> None:
    refused = runner.invoke(app, ["init", "fleet", "--rotate", "everything"])
    assert refused.exit_code == 2
    assert "certificates" in refused.output
    (tmp_path / "taken").write_text("a file, no directory")
    refused = runner.invoke(app, ["init", "taken/fleet"])
    assert refused.exit_code == 2
    assert f"cannot write {tmp_path / 'taken'}" in refused.output
