"""The gateway's table against the contract."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from services.gateway.rest.table import ELSEWHERE, OPERATIONS
from services.gateway.upstream import FILES, method
from tests.tables import table

RPCS = {one.full_name: one for file in FILES for service in file.services_by_name.values() for one in service.methods}


def test_every_rpc_has_a_row_and_no_two_rows_are_the_same() -> None:
    rows = {one.rpc for one in OPERATIONS} | {one.events for one in OPERATIONS if one.events}
    assert RPCS.keys() - rows == ELSEWHERE
    assert max(Counter((one.verb, one.path) for one in OPERATIONS).values()) == 1
    assert max(Counter(one.id for one in OPERATIONS).values()) == 1


@table("row", OPERATIONS)
def test_a_row_fits_its_rpc(row: Any) -> None:
    target = row.method
    for place in row.parameters.values():
        kind = target.input_type
        for name in place.split("."):
            field = kind.fields_by_name[name]
            kind = field.message_type
        assert not field.is_repeated, place
    for name in re.findall(r"\{(\w+)\}", row.location):
        reply = target.output_type if row.kind == "unary" else method(f"{row.service}.SubmitTask").output_type
        assert name in reply.fields_by_name
    streams = RPCS[row.events].server_streaming if row.events else True
    assert streams
    assert target.client_streaming == (row.kind == "upload")
    assert target.server_streaming == (row.kind in ("last", "bytes"))
    if row.events:
        assert RPCS[row.events].input_type is target.input_type
