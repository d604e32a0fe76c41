"""Parts of the context service's wire: enumerations, limits, faults, who is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest

from fleet.context.v1 import context_pb2 as pb
from services.context.bounds import fields_within, source_of
from services.context.servicer import ContextServicer
from services.errors import status
from swe_ai_fleet.adapters.context_service.faults import fault_of
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.messages import document, enum_name, enum_word
from swe_ai_fleet.domain import errors
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.moment import MAX_MS, iso_time, milliseconds
from swe_ai_fleet.runtime.place import find_context
from swe_ai_fleet.settings import Settings

PROMISED = """
GetContext UpdateContext RehydrateSession ValidateScope CreateStory CreateTask AddProjectDecision TransitionPhase
ListStories GetGraphRelationships RecordOperations AddInteraction AddFact Recall ClearMemory RecordOutcome
GetOutcome RecommendApproach
"""


def test_the_service_has_the_promised_calls_and_answers_each() -> None:
    service = pb.DESCRIPTOR.services_by_name["ContextService"]
    assert service.full_name == "fleet.context.v1.ContextService"
    assert [method.name for method in service.methods] == PROMISED.split()
    for name in PROMISED.split():
        assert name in vars(ContextServicer)


USAGE = Usage(
    prompt_tokens=1, completion_tokens=2, cached_tokens=3, model_calls=4, tool_calls=5, duration_ms=6, cost=0.5
)


@pytest.mark.parametrize("text", ["", "yesterday", "1969-01-01T00:00:00+00:00"])
def test_what_is_no_time_is_none(text: str) -> None:
    assert milliseconds(text) == 0


def test_times_come_back_to_the_millisecond() -> None:
    at = "2026-11-22T13:55:00.123+00:00"
    assert iso_time(milliseconds(at)) == at
    assert iso_time(MAX_MS).startswith("9999-12-31")


@pytest.mark.parametrize(
    ("given", "caller", "expected"),
    [
        ("", "", "caller:unnamed"),
        ("", "ada", "caller:ada"),
        ("agent:dev-1", "", "agent:dev-1, caller:unnamed"),
        ("execution:x", "ada", "execution:x, caller:ada"),
    ],
)
def test_the_caller_stands_in_the_source(given: str, caller: str, expected: str) -> None:
    assert source_of(given, caller) == expected


@pytest.mark.parametrize("given", ["caller:root", "agent:", "agent:a\nb", "agent:" + 300 * "a", "me"])
def test_nobody_else_can_be_claimed_as_a_source(given: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        source_of(given, "ada")


@pytest.mark.parametrize(
    ("field", "told"),
    [("title", "story.title"), ("notes[a.b]", "story.notes[a.b]"), ("expected_version", "expected_version"), ("", "")],
)
def test_fields_are_named_as_the_request_calls_them(field: str, told: str) -> None:
    with (
        pytest.raises(errors.NotFound) as fault,
        fields_within("story", expected_version="expected_version"),
    ):
        raise errors.NotFound("no", field=field, hint="h")
    assert (fault.value.field, fault.value.hint) == (told, "h")


class Ended(grpc.aio.AioRpcError):
    """A call that ended as a server of ours ends it."""

    def __init__(self, error: errors.FleetError) -> None:
        ending = status(error)
        code = next(one for one in grpc.StatusCode if one.value[0] == ending.code)
        trailer = (("grpc-status-details-bin", ending.SerializeToString()),)
        super().__init__(code, grpc.aio.Metadata(), trailer, ending.message)


@pytest.mark.parametrize(
    "kind",
    [
        errors.InvalidRequest,
        errors.NotFound,
        errors.AlreadyExists,
        errors.PreconditionFailed,
        errors.ResourceExhausted,
        errors.Unavailable,
        errors.Fenced,
    ],
)
def test_a_fault_is_the_same_on_the_other_side(kind: type[errors.FleetError]) -> None:
    fault = fault_of(Ended(kind("it is so", field="a.b")), "here:1")
    assert type(fault) is kind
    assert (fault.message, fault.field) == ("it is so", "a.b")


def test_a_document_has_every_field_and_words_for_numbers() -> None:
    told = document(pb.CreateTaskResponse(version=3, task=pb.Task(task_id="T", role=pb.ROLE_QA, depends_on=["A"])))
    assert told["version"] == 3
    assert told["task"]["role"] == "qa"
    assert (told["task"]["depends_on"], told["task"]["state"]) == (["A"], "")
    assert "record" not in document(pb.RecordOperationsRequest())
    assert json.loads(json.dumps(told)) == told


def test_the_service_that_is_asked_and_the_token_it_gets(tmp_path: Path) -> None:
    assert find_context(Settings(home=tmp_path)) is None
    card = {"address": "127.0.0.1:1", "token": "t", "pid": os.getpid(), "context": "127.0.0.1:2"}
    (tmp_path / "fleet.json").write_text(json.dumps(card))
    (tmp_path / "context.json").write_text(json.dumps({**card, "address": "127.0.0.1:3", "token": "alone"}))
    found = find_context(Settings(home=tmp_path))
    assert found is not None and (found.address, found.token) == ("127.0.0.1:2", "t")
    named = Settings(home=tmp_path, context_url="far:9", context_token="theirs")
    found = find_context(named)
    assert found is not None and (found.address, found.token) == ("far:9", "theirs")
    for address, token in (("far:8", ""), ("127.0.0.1:2", "t"), ("127.0.0.1:3", "alone")):
        found = find_context(named, server=address)
        assert found is not None and (found.address, found.token) == (address, token)


def test_the_commands_load_no_store_and_no_model() -> None:
    heavy = ["apsw", "numpy", "yaml", "ray", "nats", "httpx2", "starlette", "uvicorn", "mcp"]
    program = f"import sys, swe_ai_fleet.cli.main; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_values_of_enumerations_are_words_and_words_are_values() -> None:
    for kind, number, word in ((pb.TaskState, pb.TASK_STATE_IN_PROGRESS, "in_progress"), (pb.Role, pb.ROLE_QA, "qa")):
        assert enum_word(kind, number) == word
        assert kind.Value(enum_name(kind, word.upper().replace("_", "-"), field="x")) == number
    assert enum_word(pb.Role, pb.ROLE_UNSPECIFIED) == "" and enum_name(pb.Role, "", field="x") == "ROLE_UNSPECIFIED"
    # What a newer server has besides.
    assert enum_word(pb.Role, 4_711) == "4711"
    for word in ("unspecified", "chef"):
        with pytest.raises(CommandFault) as fault:
            enum_name(pb.Role, word, field="role")
        assert (fault.value.field, fault.value.exit_code) == ("role", Exit.USAGE) and "architect" in fault.value.hint
