"""docs/chat.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swe_ai_fleet import ChatSession
from swe_ai_fleet.settings import Settings

TEXT = (Path(__file__).parents[3] / "docs" / "chat.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_formatting_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [block for block in blocks("python") if "conversations" in block]
    exec(compile(example, "chat.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("*Two cities*\n\n*Days*\n```\ncity  days")


def test_the_library_example_names_what_there_is() -> None:
    (example,) = [block for block in blocks("python") if "ChatSession" in block]
    compile(example, "chat.md", "exec")
    assert ChatSession(session_id="mine", namespaces=["agent:ada"], settings=Settings()).session_id == "mine"
