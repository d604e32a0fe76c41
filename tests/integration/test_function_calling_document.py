"""docs/function-calling.md: its examples are run as they stand, in their order."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn

DOCUMENT = Path(__file__).parents[2] / "docs/function-calling.md"
LOOK = Turn(tool_calls=(("weather", {"city": "Rome"}),))
SCRIPT = Script(
    conversations=(
        Conversation(match="Be brief.", turns=(LOOK, Turn(content="Sunny."))),
        Conversation(
            match="What is the weather in Rome?",
            turns=(Turn(content="1. Look."), LOOK, Turn(tool_calls=(("final_answer", {"result": "1. Sun\n2. Moon"}),))),
        ),
    )
)


async def test_the_examples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("Take an umbrella.")
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    async with ScriptedModelServer(SCRIPT) as server:
        monkeypatch.setenv("FLEET_MODEL_URL", server.url)
        for block in blocks:
            code = compile(block, DOCUMENT.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            assert isinstance(code, CodeType)
            done = FunctionType(code, names)()
            if done is not None:
                await done
        sent = str(server.bodies)
    printed = capsys.readouterr().out
    assert "step run 1. Look." in printed
    assert "step tool Rome: sunny for 1 days" in printed
    assert "final run 1. Sun\n2. Moon\n" in printed
    assert "success Sunny. 1" in printed
    assert "Take an umbrella." in sent
