"""Log lines: one form for our own and for libraries, with the ids of what they are about, without secrets."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import structlog

from swe_ai_fleet.domain.event import CancelRequested, ExecutionClaimed, Writer
from swe_ai_fleet.telemetry import Telemetry, configure_logging
from swe_ai_fleet.testing.memory_log import MemoryLog

SECRET = "-".join(("nobody", "guesses", "this"))


class Told(io.StringIO):
    """Standard error while a test runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._monkeypatch = monkeypatch

    def configure(
        self, form: Literal["json", "text"] = "json", mask: Callable[[str], str] | None = None
    ) -> structlog.typing.FilteringBoundLogger:
        # Not in the fixture: pytest puts its own in between.
        self._monkeypatch.setattr(sys, "stderr", self)
        configure_logging("info", form, mask=mask)
        return structlog.get_logger()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """Everything about logging is as it was afterwards."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield Told(monkeypatch)
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


def _lines(told: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in told.getvalue().splitlines()]


def _mask(text: str) -> str:
    return text.replace(SECRET, "***")


def test_a_line_is_an_object_with_time_level_and_event(told: Told) -> None:
    told.configure()
    structlog.get_logger().info("something.happened", number=3)
    structlog.get_logger().debug("not asked for")
    (line,) = _lines(told)
    assert (line["event"], line["level"], line["number"]) == ("something.happened", "info", 3)
    assert str(line["ts"]).endswith("Z")


def test_libraries_tell_in_the_same_form_and_once(told: Told) -> None:
    told.configure()
    told.configure()
    logging.getLogger("uvicorn.error").warning("cannot %s", "bind")
    logging.getLogger("uvicorn.error").info("not asked for")
    (line,) = _lines(told)
    assert (line["event"], line["level"], line["logger"]) == ("cannot bind", "warning", "uvicorn.error")
    assert "ts" in line


@pytest.mark.parametrize("form", ["json", "text"])
def test_secrets_are_masked_wherever_they_stand(told: Told, form: Literal["json", "text"]) -> None:
    log = told.configure(form, _mask)
    log.warning(f"with {SECRET}", value=SECRET, nested={"a": [SECRET]}, other=object.__new__(_Telling))
    try:
        raise RuntimeError(SECRET)
    except RuntimeError:
        log.exception("a fault")
    logging.getLogger("grpc").error("it was %s", SECRET)
    assert SECRET not in told.getvalue()
    assert told.getvalue().count("***") >= 6
    if form == "json":
        assert len(_lines(told)) == 3


class _Telling:
    def __repr__(self) -> str:
        return SECRET


def test_text_is_for_readers(told: Told) -> None:
    told.configure("text")
    structlog.get_logger().info("something.happened", number=3)
    assert "something.happened" in told.getvalue() and "number=3" in told.getvalue()
    with pytest.raises(ValueError):
        json.loads(told.getvalue())


def test_there_is_no_such_level() -> None:
    with pytest.raises(ValueError, match="use debug, info, warning or error"):
        configure_logging("loud")


def test_what_asyncio_says_at_the_end_of_tls_is_left_out(told: Told) -> None:
    told.configure()
    library = logging.getLogger("asyncio")
    library.warning("returning true from eof_received() has no effect when using ssl")
    library.warning("socket.send() raised exception.")
    assert [line["event"] for line in _lines(told)] == ["socket.send() raised exception."]


async def test_lines_name_whose_work_they_are_about(told: Told) -> None:
    told.configure()
    log, out = Telemetry().observed(MemoryLog()), structlog.get_logger()
    writer = Writer(tenant="acme", execution_id="e1", task_id="t1")
    agent = Writer(tenant="acme", execution_id="e1", task_id="t1", agent_id="dev-1")
    async with log.journal(writer) as journal:
        await journal.append(ExecutionClaimed(generation=1, owner="me"))
        out.info("driven")
        async with log.journal(agent):
            out.info("an agent's")
        out.info("driven again")
    out.info("nobody's")
    ids = [(line.get("tenant"), line.get("execution_id"), line.get("agent_id")) for line in _lines(told)]
    execution = ("acme", "e1", None)
    assert ids == [execution, ("acme", "e1", "dev-1"), execution, (None, None, None)]


async def test_a_journal_that_cannot_be_had_leaves_no_ids(told: Told) -> None:
    told.configure()
    storage = MemoryLog()
    log = Telemetry().observed(storage)
    writer = Writer(tenant="acme", execution_id="e1", task_id="t1")
    async with log.journal(writer) as journal:
        await journal.append(ExecutionClaimed(generation=1, owner="me"))
    with pytest.raises(Exception, match="generation"):
        async with log.journal(writer):
            raise AssertionError("it belongs to somebody else")
    structlog.get_logger().info("nobody's")
    assert "execution_id" not in _lines(told)[-1]


async def test_what_is_told_through_an_observed_log_is_the_logs_own() -> None:
    storage = MemoryLog()
    log = Telemetry().observed(storage)
    writer = Writer(tenant="acme", execution_id="e1", task_id="t1", agent_id="~")
    stored = await log.tell(writer, CancelRequested(reason="enough"))
    assert [one async for one in log.read("acme", "e1")] == [stored]
    assert [one async for one in log.heads()] == [stored]
