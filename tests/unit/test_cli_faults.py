"""Faults as commands tell them, and which fleet a command finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest

from services.errors import status
from swe_ai_fleet.cli.calls import fault_of_call
from swe_ai_fleet.cli.client import connect
from swe_ai_fleet.cli.exits import CommandFault, Exit, exit_of, fault_of
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.runtime.place import find_place, running_place
from swe_ai_fleet.settings import Settings


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("completed", 0),
        ("no_winner", 1),
        ("failed", 1),
        ("timeout", 4),
        ("cancelled", 4),
        ("rejected", 5),
    ],
)
def test_an_executions_end_has_its_exit_code(word: str, code: int) -> None:
    assert exit_of(ExecutionStatus(word)) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("x"), Exit.USAGE),
        (NotFound("x"), Exit.USAGE),
        (PreconditionFailed("x"), Exit.USAGE),
        (Unavailable("x"), Exit.UNAVAILABLE),
        (FleetError("x"), Exit.NOT_ACCEPTED),
    ],
)
def test_a_fault_has_its_exit_code(error: FleetError, code: Exit) -> None:
    assert fault_of(error).exit_code is code


def test_what_a_fleet_needs_to_start_is_a_dependency() -> None:
    assert fault_of(PreconditionFailed("no nats-server found"), starting=True).exit_code is Exit.UNAVAILABLE


def call_error(code: grpc.StatusCode, details: str = "", error: FleetError | None = None) -> grpc.aio.AioRpcError:
    rich = (("grpc-status-details-bin", status(error).SerializeToString()),) if error else ()
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*rich), details)


def test_a_rich_error_names_its_field() -> None:
    error = InvalidRequest("unknown role 'CHEF'", field="role", hint="one of DEV")
    fault = fault_of_call(call_error(grpc.StatusCode.INVALID_ARGUMENT, "unknown role 'CHEF'", error), "h:1")
    assert (fault.exit_code, fault.field, fault.message) == (Exit.USAGE, "role", "unknown role 'CHEF'")


def test_an_unreached_server_is_told_apart_from_one_whose_dependency_is_down() -> None:
    unreached = fault_of_call(call_error(grpc.StatusCode.UNAVAILABLE, "connection refused"), "h:1")
    assert unreached.exit_code is Exit.UNAVAILABLE
    assert "no fleet answers at h:1" in unreached.message
    # A way out for each command: only some take --local.
    assert all(way in unreached.hint for way in ("fleet up", "FLEET_HOME", "fleet run --local"))
    dependent = Unavailable("the git remote does not answer", field="repo.url")
    down = fault_of_call(call_error(grpc.StatusCode.UNAVAILABLE, dependent.message, dependent), "h:1")
    assert (down.exit_code, down.message, down.hint) == (Exit.UNAVAILABLE, dependent.message, "")


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (grpc.StatusCode.NOT_FOUND, Exit.USAGE),
        (grpc.StatusCode.ALREADY_EXISTS, Exit.USAGE),
        (grpc.StatusCode.UNAUTHENTICATED, Exit.USAGE),
        (grpc.StatusCode.UNIMPLEMENTED, Exit.USAGE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Exit.STOPPED),
        (grpc.StatusCode.CANCELLED, Exit.UNAVAILABLE),
        (grpc.StatusCode.INTERNAL, Exit.NOT_ACCEPTED),
    ],
)
def test_a_call_without_details_still_has_its_exit_code(code: grpc.StatusCode, exit_code: Exit) -> None:
    fault = fault_of_call(call_error(code), "h:1")
    assert fault.exit_code is exit_code and fault.message


def write_card(home: Path, pid: int) -> None:
    home.mkdir(exist_ok=True)
    (home / "fleet.json").write_text(json.dumps({"address": "127.0.0.1:7", "token": "secret", "pid": pid}))


def test_the_fleet_of_a_home_is_found_by_its_card(tmp_path: Path) -> None:
    assert running_place(tmp_path) is None
    write_card(tmp_path, os.getpid())
    place = find_place(Settings(home=tmp_path), server="", token="")
    assert place is not None
    assert (place.address, place.token) == ("127.0.0.1:7", "secret")


def test_the_card_of_a_dead_process_does_not_count(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_card(tmp_path, ended.pid)
    assert running_place(tmp_path) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"address": 1, "token": "x", "pid": 1}', "\xff"])
def test_a_card_that_is_none_does_not_count(tmp_path: Path, content: str) -> None:
    (tmp_path / "fleet.json").write_text(content)
    assert running_place(tmp_path) is None


def test_a_homes_token_goes_to_no_other_address(tmp_path: Path) -> None:
    write_card(tmp_path, os.getpid())
    settings = Settings(home=tmp_path)
    same = find_place(settings, server="127.0.0.1:7", token="")
    other = find_place(settings, server="evil.example.org:7", token="")
    given = find_place(settings, server="evil.example.org:7", token="mine")
    assert [place.token for place in (same, other, given) if place] == ["secret", "", "mine"]
    assert "secret" not in repr(same)


async def test_nobody_listening_is_a_dependency_that_is_down() -> None:
    async with connect("127.0.0.1:1", "") as client:
        with pytest.raises(CommandFault) as caught:
            await client.find("some-task")
    assert caught.value.exit_code is Exit.UNAVAILABLE
