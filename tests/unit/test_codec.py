"""What was written must be readable for ever: golden payloads of every kind of event, and round trips.

`python tests/unit/test_codec.py` writes the golden files of kinds that have none yet. A file that is there is never
rewritten: it is what some log out there holds.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.codec import from_json, from_plain, to_json, to_plain
from swe_ai_fleet.domain.audit import GENESIS, AuditEntry, verify
from swe_ai_fleet.domain.event import Event, EventBody, ModelReplied, StoredEvent
from swe_ai_fleet.domain.tool import ToolResult
from tests.sampling import missing, sample
from tests.tables import table

GOLDEN = Path(__file__).parent / "golden"
FILES = {path.stem: path.read_bytes() for path in sorted(GOLDEN.glob("*.json"))}
SAMPLES = {body.type: sample(Event, body=body) for body in map(sample, get_args(EventBody))}
LATER = ("candidates_ranked.examined", "candidates_ranked.verdict", "checks_finished.own", "checks_finished.verdict",
         "execution_started.judge", "winner_delivered.verdict")  # fmt: skip
"""Kinds that have said more since: beside the first payload of each stands one with all of it."""


def write_missing() -> None:
    """Write the golden file of every kind that has none yet; done once for a new kind of event."""
    for name in SAMPLES.keys() - FILES.keys():
        text = json.dumps(to_plain(SAMPLES[name]), indent=2, ensure_ascii=False)
        (GOLDEN / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


def test_every_kind_of_event_has_a_golden_file() -> None:
    assert set(FILES) == {*SAMPLES, *LATER}


@table("name", FILES)
def test_an_old_payload_still_says_the_same(name: str) -> None:
    old, loaded = json.loads(FILES[name]), from_json(Event, FILES[name])
    assert type(loaded.body) is type(SAMPLES[name.partition(".")[0]].body)
    assert from_plain(Event, old) == loaded
    assert not missing(old, to_plain(loaded))


def test_the_audit_chain_of_the_golden_events_is_whole() -> None:
    entries = [from_json(Event, FILES[kind]).body.entry for kind in ("tool_started", "tool_finished")]  # type: ignore[union-attr]
    assert verify(entries, head=entries[-1].hash) is None


@table("kind", SAMPLES)
def test_every_field_comes_back_and_those_of_later_versions_are_ignored(kind: str) -> None:
    stored = StoredEvent(sequence=7, event=SAMPLES[kind])
    assert from_json(StoredEvent, to_json(stored)) == stored
    plain = to_plain(stored)
    assert from_plain(StoredEvent, json.loads(json.dumps(plain))) == from_plain(StoredEvent, plain) == stored
    plain["event"]["body"]["field_of_a_later_version"] = {"nested": [1]}
    assert from_plain(StoredEvent, plain) == stored
    plain["event"]["body"]["type"] = "never_heard_of"
    with pytest.raises(ValueError, match="body"):
        from_plain(StoredEvent, plain)


def test_which_server_answered_is_told_to_nobody_who_reads_the_log() -> None:
    sampled = SAMPLES["model_replied"].body
    assert isinstance(sampled, ModelReplied)
    event = replace(SAMPLES["model_replied"], body=replace(sampled, reply=replace(sampled.reply, server="")))
    body = replace(sampled, reply=replace(sampled.reply, server="vllm-7.models.internal:8000"))
    named = replace(event, body=body)
    # One of an earlier version, which named it, is read and told without it, too.
    old = to_json(event).replace(b'"server":""', b'"server":"vllm-7.models.internal:8000"')
    assert b"internal" in old
    for told in (named, body, from_json(Event, old), from_json(Event, old).body):
        assert b"internal" not in to_json(told) and "internal" not in json.dumps(to_plain(told))
    assert from_json(Event, to_json(named)) == event


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(said=st.dictionaries(st.text(max_size=5), json_values, max_size=3), content=st.text())
def test_whatever_a_tool_says_comes_back_and_a_sealed_entry_is_still_sealed(said: dict[str, object], content: str):
    result = ToolResult(success=True, operation="x", content=content, metadata=said)
    assert from_json(ToolResult, to_json(result)) == result
    entry = replace(sample(AuditEntry), seq=1, arguments=said).sealed(GENESIS)
    assert verify([from_json(AuditEntry, to_json(entry))]) is None


@table("data", [b"", b"{}", b"null", b"[1]", b'{"id": 1}', b"\xff", b'{"body": {"type": "run_lost"}}'])
def test_what_is_no_event_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        from_json(Event, data)


if __name__ == "__main__":
    write_missing()
