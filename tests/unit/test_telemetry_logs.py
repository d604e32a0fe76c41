"""Log lines without secrets, with the ids of what they are about; trace context that strangers send."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
import structlog

from services.gateway.main import Observed
from swe_ai_fleet.domain.event import ExecutionClaimed, Writer
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import Telemetry, configure_logging
from tests.tables import table

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


@pytest.mark.parametrize("form", ["json", "text"])
def test_secrets_are_masked_wherever_they_stand(told: Told, form: Literal["json", "text"]) -> None:
    log = told.configure(form, lambda text: text.replace(SECRET, "***"))
    log.warning(f"with {SECRET}", value=SECRET, nested={"a": [SECRET]}, other=Path(SECRET))
    try:
        raise RuntimeError(SECRET)
    except RuntimeError:
        log.exception("a fault")
    logging.getLogger("grpc").error("it was %s", SECRET)
    assert SECRET not in told.getvalue()
    assert told.getvalue().count("***") >= 6
    if form == "json":
        assert len(_lines(told)) == 3
    else:
        with pytest.raises(ValueError):
            json.loads(told.getvalue())


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
    # A journal that cannot be had leaves none.
    with pytest.raises(Exception, match="generation"):
        async with log.journal(writer):
            raise AssertionError("it belongs to somebody else")
    out.info("nobody's")
    ids = [(line.get("tenant"), line.get("execution_id"), line.get("agent_id")) for line in _lines(told)]
    execution = ("acme", "e1", None)
    assert ids == [execution, ("acme", "e1", "dev-1"), execution, (None, None, None)]


@table("name", ["nats_url", "model_url", "search_url"])
def test_passwords_in_urls_are_masked(name: str) -> None:
    plain = f"{'nats' if name == 'nats_url' else 'http'}://127.0.0.1:9"
    url = plain.replace("://", f"://me:{SECRET}@")
    mask = secret_mask(Settings.model_validate({name: url}))
    assert SECRET not in mask(f"no answer from {url} with {SECRET}")
    assert secret_mask(Settings.model_validate({name: plain}))(plain) == plain


async def test_what_ends_a_process_is_masked() -> None:
    code = (
        "import sys\n"
        "from swe_ai_fleet.telemetry import configure_logging\n"
        "configure_logging('info', 'json', mask=lambda text: text.replace(sys.argv[1], '***'))\n"
        "raise RuntimeError(f'cannot go on with {sys.argv[1]}')\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, SECRET, stderr=asyncio.subprocess.PIPE)
    _, told = await process.communicate()
    assert process.returncode == 1
    assert b"cannot go on with ***" in told and SECRET.encode() not in told


PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
STATES = {
    "": True,
    "a=1": True,
    "vendor@tenant=x:1;y, b-1=2": True,
    "a=1" + " " * 500 + "x": False,
    "a=1" + " " * 60_000 + "x": False,
    ",".join(f"k{number}=v" for number in range(33)): False,
    ",".join(f"k{number}={'v' * 50}" for number in range(12)): False,
    "a=1,a=2": False,
    "no member": False,
    "a=b=c": False,
    "a=1\r\nauthorization: x": False,
    "\x00": False,
}
NO_PARENTS = ("", "x" * 60_000, PARENT.upper(), PARENT + "-" + "x" * 60_000, PARENT + "\n", f"00-{'a' * 32}")


async def _stamped(parent: str, state: str = "", **more: str) -> dict[str, str]:
    """What a gateway without a collector sends on with a request's calls."""
    telemetry, stamped = Telemetry(), dict[str, str]()

    async def app(scope, receive, send) -> None:
        stamped.update(telemetry.stamp())
        await send({"type": "http.response.start", "status": 200})

    async def silent(message=None) -> None:
        del message

    given_ = {"traceparent": parent, "tracestate": state, **more}
    headers = [(name.encode(), value.encode("utf-8", "replace")) for name, value in given_.items() if value]
    scope = {"type": "http", "method": "GET", "path": "/api/x", "scheme": "http", "headers": headers}
    await Observed(app, telemetry)(scope, silent, silent)
    assert telemetry.stamp() == {}
    return stamped


async def test_what_is_whole_is_passed_on_and_what_is_hostile_left_out_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    for state, whole in STATES.items():
        began = time.perf_counter()
        kept = {"traceparent": PARENT, **({"tracestate": state} if state and whole else {})}
        assert await _stamped(PARENT, state, baggage="user=me") == kept
        # A pattern that backtracks would take minutes.
        assert time.perf_counter() - began < 5
    # Calls do not see each other's traces.
    stamped = await asyncio.gather(_stamped(PARENT), _stamped(PARENT.replace("a", "c")), _stamped(""))
    assert [one.get("traceparent") for one in stamped] == [PARENT, PARENT.replace("a", "c"), None]
    for parent in NO_PARENTS:
        assert await _stamped(parent, "a=1") == {}
    # Whoever is not let in cannot write to the log of operators either.
    assert not [one for one in caplog.records if one.name != "asyncio"]
