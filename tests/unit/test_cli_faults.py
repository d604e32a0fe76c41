"""Faults as commands tell them, and which fleet a command finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import grpc
import grpc.aio

from services.errors import status
from swe_ai_fleet.cli.calls import fault_of_call
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.domain.errors import FleetError, Unavailable
from swe_ai_fleet.runtime.channels import find_place, running_place
from swe_ai_fleet.settings import Settings


def call_error(code: grpc.StatusCode, details: str = "", error: FleetError | None = None) -> grpc.aio.AioRpcError:
    rich = (("grpc-status-details-bin", status(error).SerializeToString()),) if error else ()
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*rich), details)


def test_an_unreached_server_is_told_apart_from_one_whose_dependency_is_down() -> None:
    unreached = fault_of_call(call_error(grpc.StatusCode.UNAVAILABLE, "connection refused"), "h:1")
    assert unreached.exit_code is Exit.UNAVAILABLE
    assert "no fleet answers at h:1" in unreached.message
    # A way out for each command: only some take --local.
    assert all(way in unreached.hint for way in ("fleet up", "FLEET_HOME", "fleet run --local"))
    dependent = Unavailable("the git remote does not answer", field="repo.url")
    down = fault_of_call(call_error(grpc.StatusCode.UNAVAILABLE, dependent.message, dependent), "h:1")
    assert (down.exit_code, down.message, down.hint) == (Exit.UNAVAILABLE, dependent.message, "")
    for code, exit_code in {"UNIMPLEMENTED": 2, "DEADLINE_EXCEEDED": 4, "CANCELLED": 3, "INTERNAL": 1}.items():
        fault = fault_of_call(call_error(grpc.StatusCode[code]), "h:1")
        assert fault.exit_code == exit_code and fault.message, code


def write_card(home: Path, pid: int) -> None:
    home.mkdir(exist_ok=True)
    (home / "fleet.json").write_text(json.dumps({"address": "127.0.0.1:7", "token": "secret", "pid": pid}))


def test_only_the_card_of_a_fleet_that_runs_counts_and_its_token_goes_to_no_other_address(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_card(tmp_path, ended.pid)
    assert running_place(tmp_path) is None
    for content in ("", "[]", "{}", '{"address": 1, "token": "x", "pid": 1}', "\xff"):
        (tmp_path / "fleet.json").write_text(content)
        assert running_place(tmp_path) is None, content
    write_card(tmp_path, os.getpid())
    settings = Settings(home=tmp_path)
    for server, token, found in (
        ("", "", ("127.0.0.1:7", "secret")),
        ("127.0.0.1:7", "", ("127.0.0.1:7", "secret")),
        ("evil.example.org:7", "", ("evil.example.org:7", "")),
        ("evil.example.org:7", "mine", ("evil.example.org:7", "mine")),
    ):
        place = find_place(settings, server=server, token=token)
        assert place is not None and (place.address, place.token) == found
        assert "secret" not in repr(place)
