"""The way of every operation: validation, policy, limits, masking, truncation, and what its audit records."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.audit import GENESIS, AuditEntry, verify
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.event import Event, EventBody, ToolFinished, ToolStarted
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.tools import FileTool, Pipeline, ToolFailure, Toolkit, ToolLimits, operation
from swe_ai_fleet.tools.audit import AuditRecord, AuditTrail
from swe_ai_fleet.tools.secrets import Secrets
from tests.tables import table
from tests.tool_doubles import ListJournal

TOKEN = "hunter2-token/+=?"


class Sample(Toolkit):
    """Operations that end in every way an operation can end."""

    name = "sample"

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(FileTool(Path()).workspace, pipeline)
        self.running = asyncio.Event()
        self.writes: list[str] = []

    @operation(read_only=True)
    async def look(
        self, path: Annotated[str, Field(description="What to look at.")], depth: int = 1, note: str | None = None
    ) -> ToolResult:
        """Look at something.

        More about it.
        """
        return ToolResult(
            success=True, operation="sample_look", content=f"{path} {depth} {note}", metadata={"path": path}
        )

    @operation()
    async def write(self, path: str, content: str = "") -> ToolResult:
        """Write something."""
        self.writes.append(path)
        return ToolResult(success=True, operation="sample_write", content=content)

    @operation()
    async def fail(self, reason: str) -> ToolResult:
        """Fail."""
        raise ToolFailure(f"it failed: {reason}")

    @operation()
    async def break_down(self) -> ToolResult:
        """Have a bug."""
        raise KeyError(TOKEN)

    @operation(time_limit_seconds=0.01)
    async def hang(self) -> ToolResult:
        """Hang."""
        self.running.set()
        await asyncio.Event().wait()
        raise AssertionError


def kit(**parts: object) -> Sample:
    return Sample(Pipeline(**parts))  # type: ignore[arg-type]


def outcomes(sample: Sample) -> list[str]:
    return [str(entry.outcome) for entry in sample.pipeline.trail.entries]


class TestAudit:
    async def test_a_change_is_recorded_before_it_happens(self) -> None:
        sample = kit()

        class Watching(ListJournal):
            async def append(self, body: EventBody) -> Event:
                assert sample.writes == []
                return await super().append(body)

        watching = Watching()
        sample.pipeline.trail = AuditTrail(journal=watching, execution_id="e", agent_id="a")
        await sample.call("write", {"path": "a"}, call_id="call-1")
        assert outcomes(sample) == ["started", "success"]
        assert sample.pipeline.trail.entries[-1].arguments == {"path": "a"}
        assert [type(body) for body in watching.bodies] == [ToolStarted, ToolFinished]
        assert {(body.entry.call_id, body.entry.workspace_revision) for body in watching.bodies} == {("call-1", 1)}

    async def test_a_call_cancelled_while_its_start_is_written_is_closed_too(self) -> None:
        writing = asyncio.Event()

        class Slow(ListJournal):
            async def append(self, body: EventBody) -> Event:
                writing.set()
                await asyncio.Event().wait()
                raise AssertionError

        sample = kit(trail=AuditTrail(journal=Slow()))
        task = asyncio.create_task(sample.call("write", {"path": "a"}))
        await writing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert outcomes(sample) == ["started", "cancelled"]
        assert sample.writes == []


class TestHalfCharacters:
    async def test_halves_of_surrogate_pairs_never_reach_the_log(self) -> None:
        journal = ListJournal()
        sample = kit(trail=AuditTrail(journal=journal))
        results = [
            await sample.write("a", "half \ud83d of a smile, whole \U0001f600"),
            await sample.look("\udcff"),
            await sample.fail("\ud83d"),
            await sample.call("look", {"\ud83d": "\ud83d", "path": ["\ud83d"]}),
        ]
        assert results[0].content == "half \ufffd of a smile, whole \U0001f600"
        assert results[1].metadata == {"path": "\ufffd"}
        for body in journal.bodies:
            assert isinstance(body, ToolStarted | ToolFinished)
            assert from_json(AuditEntry, to_json(body.entry)) == body.entry
        assert verify(sample.pipeline.trail.entries) is None


class TestHonestRecords:
    """What the audit says is what happened, however a call ends."""

    async def test_a_bug_leaves_no_open_entry(self) -> None:
        journal = ListJournal()
        tool = kit(trail=AuditTrail(journal=journal), mask=Secrets([TOKEN]))
        with pytest.raises(KeyError):
            await tool.break_down()
        assert [entry.outcome for entry in tool.pipeline.trail.entries] == [Outcome.STARTED, Outcome.ERROR]
        told = journal.bodies[-1]
        assert isinstance(told, ToolFinished)
        assert "KeyError" in told.result.error
        assert TOKEN not in repr(journal.bodies)

    @table("depth", [200, 900, 980, 990, 2_000, 100_000])
    async def test_nesting_without_end_ends_no_run(self, depth: int) -> None:
        nested: list[object] = []
        for _ in range(depth):
            nested = [nested]
        sample = kit()
        assert (await sample.call("look", {"path": nested})).outcome is Outcome.INVALID
        assert outcomes(sample) == ["invalid"]

    async def test_names_and_ids_that_a_model_wrote_are_bounded(self) -> None:
        sample = kit()
        await sample.call("look", {"x" * 10_000: 1}, call_id="y" * 10_000)
        (entry,) = sample.pipeline.trail.entries
        assert max(map(len, (entry.call_id, *entry.arguments))) <= 200
        assert len(entry.reason) < 5_000


@given(
    value=st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="[]."), min_size=8),
    before=st.text(max_size=40),
    limit=st.integers(20, 200),
)
async def test_whatever_is_returned_stored_or_recorded_shows_no_secret(value: str, before: str, limit: int) -> None:
    stored: list[bytes] = []

    async def store(data: bytes) -> BlobRef:
        stored.append(data)
        return BlobRef(name="n", digest=hashlib.sha256(data).hexdigest(), size=len(data))

    journal = ListJournal()
    sample = kit(
        mask=Secrets([f"q{value}z"]),
        trail=AuditTrail(journal=journal),
        store=store,
        limits=ToolLimits(observation_chars=limit),
    )
    secret = f"q{value}z"
    forms = (secret, quote(secret, safe=""), json.dumps(secret)[1:-1], secret.encode().hex())
    results = [
        await sample.call("write", {"path": f"{before}{secret}", "content": f"{before}\n{secret}\n" * 9}),
        await sample.call("look", {"path": " ".join(forms), "note": secret}),
        await sample.call("fail", {"reason": f"{before} {forms[1]}"}, call_id=secret),
        await sample.call("look", {secret: secret, "path": [secret]}),
    ]
    everything = [*results, *journal.bodies, *sample.pipeline.trail.entries, *stored]
    seen = "".join(piece for thing in everything for piece in texts(thing))
    assert not any(form in seen for form in forms)


def texts(value: object) -> Iterator[str]:
    """Every text within a value, each on a line of its own."""
    if isinstance(value, bytes):
        yield f"{value.decode()}\n"
    elif isinstance(value, str):
        yield f"{value}\n"
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from (*texts(key), *texts(part))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from texts(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from texts(getattr(value, field.name))


class TestTruncation:
    @given(text=st.text(st.sampled_from("ab\n"), max_size=400), limit=st.integers(0, 200))
    @example(text="".join(f"line {number}\n" for number in range(1000)), limit=1000)
    async def test_bounded_with_head_and_tail(self, text: str, limit: int) -> None:
        result = await kit(limits=ToolLimits(observation_chars=limit)).write("a", text)
        cut = result.content
        assert result.truncated == (len(text) > limit)
        if len(text) <= limit:
            assert cut == text
            return
        head, _, rest = cut.partition("[... ")
        note, _, tail = rest.partition(" left out ...]\n")
        assert len(cut) <= limit + 80
        assert text.startswith(head.removesuffix("\n")) and text.endswith(tail)
        characters, lines = (int(word.split()[0]) for word in note.split(", "))
        assert limit // 2 <= len(text) - characters <= limit
        assert text[len(text) - len(tail) - characters : len(text) - len(tail)].count("\n") == lines
        if text.startswith("line"):  # cuts fall on line ends
            assert head.endswith("\n") and tail.startswith("line ")


SPEC = OperationSpec(name="shell_run", tool="shell", operation="run", description="", parameters={})


def opened(trail: AuditTrail, call_id: str = "c1", **secret: object) -> AuditRecord:
    return trail.open(SPEC, arguments={"path": "***"}, secret=secret, call_id=call_id)


def said(**told: object) -> ToolResult:
    return ToolResult(**{"success": True, "operation": "shell_run", **told})


def closed(result: ToolResult, whole: str = "") -> AuditEntry:
    trail = AuditTrail(execution_id="e", agent_id="a")
    assert opened(trail).close(result, whole=whole) is result
    return trail.entries[-1]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_who_has_the_key_can_compute_the_digest_of_arguments() -> None:
    trail, one, other = AuditTrail(key=b"k"), AuditTrail(), AuditTrail()
    opened(trail, b=Path("x"), a=[1, "é"]).close(said())
    opened(trail, a=[1, "é"], b=Path("x")).close(said())
    canonical = b'{"a":[1,"\\u00e9"],"b":"' + repr(Path("x")).encode() + b'"}'
    expected = hmac.new(b"k", canonical, hashlib.sha256).hexdigest()
    assert [entry.arguments_digest for entry in trail.entries] == [expected, expected]
    for nobodys in (one, other):
        opened(nobodys, a=1).close(said())
    assert one.entries[0].arguments_digest != other.entries[0].arguments_digest


def test_an_entry_says_what_came_of_the_call() -> None:
    failed = said(success=False, error="no", outcome=Outcome.ERROR, exit_code=3, duration=0.25)
    entry = closed(failed)
    assert (entry.outcome, entry.exit_code, entry.duration_ms) == (Outcome.ERROR, 3, 250)
    assert (entry.output_digest, entry.bytes_out) == (digest("no"), 2)
    trail = AuditTrail()
    opened(trail).close(failed, PolicyDecision.REFUSED, "a rule")
    refused = trail.entries[-1]
    assert (refused.decision, refused.reason, entry.decision) == (
        PolicyDecision.REFUSED,
        "a rule",
        PolicyDecision.ALLOWED,
    )
    cut = said(content="cut…", error="beside")
    assert closed(cut).output_digest == digest("cut…")
    assert closed(cut, whole="all of it").output_digest == digest("all of it")
    assert closed(said(content="half \ud800")).bytes_out == len("half ?")
    # A call that no model named has a name of its own.
    for _ in range(2):
        opened(trail, call_id="").close(said())
    assert len({"", *(entry.call_id for entry in trail.entries[-2:])}) == 3


async def test_a_trail_may_go_on_a_chain_that_is_kept_elsewhere() -> None:
    kept: list[AuditEntry] = []

    def seal(entry: AuditEntry) -> AuditEntry:
        kept.append(entry.sealed(kept[-1].hash if kept else GENESIS))
        return kept[-1]

    one, other = AuditTrail(agent_id="a", seal=seal), AuditTrail(agent_id="b", seal=seal)
    await opened(one).start()
    opened(other).close(said())
    assert one.entries + other.entries == kept
    assert other.entries[0].prev_hash == one.head == kept[0].hash
    assert verify(one.entries, head=one.head) is None
