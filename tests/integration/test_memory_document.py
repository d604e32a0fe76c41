"""docs/memory.md: its example is run as it stands."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs/memory.md"


async def test_the_example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLEET_EMBEDDINGS", "none")
    names: dict[str, Any] = {}
    (block,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    code = compile(block, DOCUMENT.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(code, CodeType)
    await FunctionType(code, names)()
    printed = capsys.readouterr().out
    assert '["The user\'s favourite colour is teal."]' in printed
    assert printed.count("User: Where is the parser?\nAssistant: In core/parser.py.") == 2
