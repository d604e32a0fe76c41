"""The way of every operation: schema, validation, policy, audit, limits, masking, truncation."""

from __future__ import annotations

import asyncio
import hashlib
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
from swe_ai_fleet.domain.audit import AuditEntry, verify
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.event import Event, EventBody, ToolFinished, ToolStarted
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.tools import FileTool, Pipeline, ToolFailure, Toolkit, ToolLimits, operation
from swe_ai_fleet.tools.audit import AuditTrail
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


class Odd(Toolkit):
    """Operations that end in ways no operation should."""

    name = "odd"

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(FileTool(Path()).workspace, pipeline)

    @operation()
    async def break_down(self) -> ToolResult:
        """Have a bug."""
        raise KeyError(TOKEN)


class TestHonestRecords:
    """What the audit says is what happened, however a call ends."""

    async def test_a_bug_leaves_no_open_entry(self) -> None:
        journal = ListJournal()
        tool = Odd(Pipeline(trail=AuditTrail(journal=journal), mask=Secrets([TOKEN])))
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
