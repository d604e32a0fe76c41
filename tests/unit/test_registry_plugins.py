"""Tools that installed distributions bring."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.tools import ToolRegistry, load_plugins

PLUGIN = '''
from swe_ai_fleet.tools import BaseTool, FunctionTool, ToolParameter

class Reverse(BaseTool):
    name = "reverse"
    description = "Turn a text round."
    parameters = [ToolParameter("text", "string", "What.", True)]

    async def execute(self, text):
        return {"reversed": text[::-1]}

def count(text: str) -> int:
    """Count letters."""
    return len(text)

def now() -> str:
    """Say when."""
    return "now"

def several():
    return [FunctionTool(count, name="count_a"), FunctionTool(count, name="count_b")]

def some() -> "list[BaseTool]":
    return (FunctionTool(count, name="count_c"),)

table = [FunctionTool(count, name="count_d")]
instance = FunctionTool(count, name="count_e")

def no_list():
    return 5

def twice():
    return [FunctionTool(count, name="fresh"), FunctionTool(count, name="calculator")]

def raises():
    raise LookupError("no licence")

number = 7
'''

DRIVER = """
import asyncio, json, sys
from swe_ai_fleet.tools import ToolRegistry, load_plugins
before = "fleet_plugin" in sys.modules
report = load_plugins(ToolRegistry.default(), only=json.loads(sys.argv[1]))
print(json.dumps({
    "before": before,
    "loaded": {p.name: [p.distribution, *p.tools] for p in report.loaded},
    "broken": {p.name: p.reason for p in report.broken},
    "names": list(ToolRegistry.get_all_tools()),
    "reversed": asyncio.run(ToolRegistry.execute_tool("reverse", text="abc")),
}))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory with two distributions installed: one with many entry points, one that cannot be imported."""
    (tmp_path / "fleet_plugin.py").write_text(PLUGIN)
    (tmp_path / "fleet_broken.py").write_text("import sys\nsys.exit('no such luck')\n")
    points = {
        "fleet_plugin": ["Reverse", "count", "now", "several", "some", "table", "instance", "no_list", "twice",
                         "raises", "number", "absent"],
        "fleet_broken": ["tool"],
    }  # fmt: skip
    for module, names in points.items():
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"{module}.{name} = {module}:{name}" for name in names]
        (info / "entry_points.txt").write_text("[swe_ai_fleet.tools]\n" + "\n".join(lines) + "\n")
    return tmp_path


def drive(site: Path, only: list[str] | None) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{DRIVER}", json.dumps(only)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class TestPlugins:
    def test_installed_distributions_bring_their_tools_and_broken_ones_stop_nobody(self, site: Path) -> None:
        found = drive(site, None)
        assert not found["before"]
        assert found["loaded"] == {
            f"fleet_plugin.{entry}": ["fleet_plugin", *tools]
            for entry, tools in {
                "Reverse": ["reverse"],
                "count": ["count"],
                "instance": ["count_e"],
                "now": ["now"],
                "several": ["count_a", "count_b"],
                "some": ["count_c"],
                "table": ["count_d"],
            }.items()
        }
        said = {
            "fleet_broken.tool": "SystemExit: no such luck",
            "fleet_plugin.absent": "AttributeError",
            "fleet_plugin.no_list": "returned 5, not a list of tools",
            "fleet_plugin.number": "7 can't be registered",
            "fleet_plugin.raises": "LookupError: no licence",
            "fleet_plugin.twice": "there is a tool calculator already",
        }
        assert found["broken"].keys() == said.keys()
        for name, reason in said.items():
            assert reason in found["broken"][name]
        assert "fresh" not in found["names"]
        assert found["reversed"] == {"reversed": "cba"}

    def test_only_those_named_are_imported(self, site: Path) -> None:
        found = drive(site, ["fleet_plugin.Reverse"])
        assert (list(found["loaded"]), found["broken"]) == (["fleet_plugin.Reverse"], {})

    def test_none_installed_is_no_fault(self) -> None:
        report = load_plugins(ToolRegistry(), only=["there-is-none"])
        assert (report.loaded, report.broken) == ((), ())
