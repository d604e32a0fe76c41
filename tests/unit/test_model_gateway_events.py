"""The events of a stream, however it is cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.model_gateway.dialects import events

STREAM = b': hello\r\n\r\ndata: {"a": 1}\n\nevent: x\ndata: {\ndata: "b": 2}\r\n\r\nid: 7\n\ndata: [DONE]\n\ndata: cut'
FOUND = [b'{"a": 1}', b'{\n"b": 2}', b"[DONE]"]


@given(st.sets(st.integers(0, len(STREAM))))
def test_events_are_the_same_wherever_the_stream_is_cut(places: set[int]) -> None:
    buffer, found = bytearray(), list[bytes]()
    cuts = [0, *sorted(places), len(STREAM)]
    for start, end in pairwise(cuts):
        buffer += STREAM[start:end]
        found += events(buffer)
    assert found == FOUND
    assert bytes(buffer) == b"data: cut"
