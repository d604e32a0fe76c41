"""What a process logs of its own faults."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Iterator

import pytest
import structlog

from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import configure_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def as_it_was() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("as_it_was")
@pytest.mark.parametrize("terminal", [True, False])
def test_a_fault_is_told_without_the_values_of_variables(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    configure_logging("info")

    def fails(token: str) -> None:
        raise RuntimeError(f"it takes {len(token)} characters")

    try:
        fails("-".join(("a", "token", "that", "nobody", "guesses")))
    except RuntimeError:
        structlog.get_logger().exception("a fault of ours")
    assert "it takes 27 characters" in told.getvalue() and "fails" in told.getvalue()
    assert "a-token-that-nobody-guesses" not in told.getvalue()


PASSWORD = "-".join(("a", "password", "that", "nobody", "guesses"))


@pytest.mark.parametrize("name", ["nats_url", "model_url", "otlp_endpoint", "embeddings_url", "search_url"])
def test_passwords_in_urls_are_masked(name: str) -> None:
    scheme = "nats" if name == "nats_url" else "http"
    mask = secret_mask(Settings.model_validate({name: f"{scheme}://me:{PASSWORD}@127.0.0.1:9"}))
    assert PASSWORD not in mask(f"no answer from {scheme}://me:{PASSWORD}@127.0.0.1:9 with {PASSWORD}")
    assert (
        secret_mask(Settings.model_validate({name: "http://127.0.0.1:9"}))("http://127.0.0.1:9") == "http://127.0.0.1:9"
    )


async def test_what_ends_a_process_is_masked() -> None:
    code = (
        "import sys\n"
        "from swe_ai_fleet.telemetry import configure_logging\n"
        "configure_logging('info', sys.argv[1], mask=lambda text: text.replace(sys.argv[2], '***'))\n"
        "raise RuntimeError(f'cannot go on with {sys.argv[2]}')\n"
    )
    for form in ("json", "text"):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, form, PASSWORD, stderr=asyncio.subprocess.PIPE
        )
        _, told = await process.communicate()
        assert process.returncode == 1
        assert b"cannot go on with ***" in told and PASSWORD.encode() not in told
