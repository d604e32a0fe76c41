"""What a process logs of its own faults."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest
import structlog

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
