"""The gateway's table against the contract, and the document that is made of both."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from services.gateway.rest.comments import comments_of, kept_comments
from services.gateway.rest.openapi import document
from services.gateway.rest.operation import Operation, field_of
from services.gateway.rest.table import ELSEWHERE, OPERATIONS
from services.gateway.upstream import FILES, method

ROOT = Path(__file__).parents[2]
RPCS = {one.full_name: one for file in FILES for service in file.services_by_name.values() for one in service.methods}


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return document()


def test_every_rpc_has_a_row() -> None:
    rows = {one.rpc for one in OPERATIONS} | {one.events for one in OPERATIONS if one.events}
    assert RPCS.keys() - rows == ELSEWHERE


def test_no_two_rows_are_the_same() -> None:
    assert max(Counter((one.verb, one.path) for one in OPERATIONS).values()) == 1
    assert max(Counter(one.id for one in OPERATIONS).values()) == 1


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.id)
def test_a_row_fits_its_rpc(row: Operation) -> None:
    target = row.method
    for field in row.parameters.values():
        assert not field_of(target.input_type, field).is_repeated
    for name in re.findall(r"\{(\w+)\}", row.location):
        reply = target.output_type if row.kind == "unary" else method(f"{row.service}.SubmitTask").output_type
        assert name in reply.fields_by_name
    streams = RPCS[row.events].server_streaming if row.events else True
    assert streams
    assert target.client_streaming == (row.kind == "upload")
    assert target.server_streaming == (row.kind in ("last", "bytes"))
    if row.events:
        assert RPCS[row.events].input_type is target.input_type


def test_the_document_refers_to_nothing_that_is_not_there(made: dict[str, Any]) -> None:
    text = json.dumps(made)
    for kind in ("schemas", "responses"):
        wanted = set(re.findall(rf'"#/components/{kind}/([^"]+)"', text))
        assert wanted <= made["components"][kind].keys()
        assert len(wanted) > 5
    for schema in made["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_the_document_says_what_the_contract_says(made: dict[str, Any]) -> None:
    submit = made["paths"]["/api/executions"]["post"]
    assert submit["description"].startswith("Validates and stores a task")
    execution = made["components"]["schemas"]["orchestrator.Execution"]
    assert execution["properties"]["finished_at_ms"]["description"] == "0: has not ended."
    assert "execution_id" in execution["required"]
    task = made["components"]["schemas"]["orchestrator.DeliberateRequest"]
    assert task["additionalProperties"] is False
    cancel = made["paths"]["/api/executions/{execution_id}/cancel"]["post"]
    body = cancel["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"].keys() == {"reason"}


def test_the_comments_are_those_of_the_contract(tmp_path: Path) -> None:
    out = tmp_path / "contract.bin"
    well_known = Path(protoc.__file__).with_name("_proto")
    arguments = ["-I", str(ROOT / "proto"), "-I", str(well_known), "--include_source_info"]
    names = [file.name for file in FILES]
    assert protoc.main(["protoc", *arguments, f"--descriptor_set_out={out}", *names]) == 0
    fresh = comments_of(FileDescriptorSet.FromString(out.read_bytes()))
    assert kept_comments()["fleet.orchestrator.v1.Role"] == fresh["fleet.orchestrator.v1.Role"]
    assert fresh["fleet.orchestrator.v1.RepoRef.location"] == "Where the repository is; one of them."
    assert fresh["fleet.orchestrator.v1.Role.ROLE_DEV"] == "Writes code."
