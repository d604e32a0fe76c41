"""The registry of tools: classes, functions and plug-ins, executed and offered to agents as operations."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.tools import (
    BaseTool,
    FunctionTool,
    Pipeline,
    ToolFailure,
    ToolParameter,
    ToolRegistry,
    load_plugins,
)
from swe_ai_fleet.tools.secrets import MASK, Secrets
from tests.tables import table

SECRET = "hunter2-registry"


class Greet(BaseTool):
    name = "greet"
    description = "Greet somebody."
    parameters = (
        ToolParameter("name", "string", "Whom."),
        ToolParameter("times", "integer", "How often.", False, default=1),
        ToolParameter("tone", str, required=False, choices=("warm", "dry")),
        ToolParameter("tags", "array", required=False, items="string"),
    )

    async def execute(
        self, name: str, times: int = 1, tone: str = "warm", tags: list[str] | None = None
    ) -> dict[str, object]:
        return {"greeting": f"Hello {name}! " * times, "tone": tone, "tags": tags}


class Give(BaseTool):
    """Gives what it was made with, or raises it."""

    name = "give"
    network = False

    def __init__(self, value: object) -> None:
        self.value = value

    async def execute(self) -> object:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


class TestRegistering:
    def test_the_same_again_is_no_fault_another_is(self) -> None:
        give = Give(1)
        registry = ToolRegistry([Greet])
        assert (registry.register_tool(give), registry.register_tool(len_of)) == (give, len_of)
        registry.register_tools(Greet, give, len_of)
        assert list(registry.get_all_tools()) == ["greet", "give", "len_of"]
        with pytest.raises(InvalidRequest, match="a tool 'give' already exists; names in use: greet, give, len_of"):
            registry.register_tool(Give(2))
        assert registry.get_tool("give") is give
        for call in (registry.get_tool, lambda name: registry.get_tool_definitions([name])):
            with pytest.raises(NotFound, match=r"no tool 'gret'\. Did you mean greet\? The tools are: greet, give"):
                call("gret")


class TestExecuting:
    @table(
        ("arguments", "said"),
        [
            ({}, "missing argument 'name'. Signature: greet(name: string, times: integer = 1"),
            ({"name": "a", "who": 1}, "unexpected argument 'who'"), ({"name": None}, "argument 'name'"),
            ({"name": "a", "times": "many"}, "argument 'times'"), ({"name": "a", "tone": "rude"}, "'warm' or 'dry'"),
            ({"name": "a", "tags": [1]}, "tags"),
        ],
    )  # fmt: skip
    async def test_wrong_arguments(self, arguments: dict[str, Any], said: str) -> None:
        registry = ToolRegistry([Greet])
        found = await registry.execute_tool("greet", **arguments)
        assert (list(found), found["error"].startswith("Error: "), said in found["error"]) == (["error"], True, True)
        assert registry.pipeline.trail.entries[-1].outcome is Outcome.INVALID

    @table(
        ("fault", "said"),
        [
            (ToolFailure("try b instead"), "Error: try b instead"),
            (TimeoutError("slow server"), "Error: give failed: TimeoutError: slow server"),
            (SystemExit(3), "Error: give failed: SystemExit: 3"),
        ],
    )
    async def test_what_a_tool_raises_ends_nothing(self, fault: BaseException, said: str) -> None:
        registry = ToolRegistry([Give(fault)])
        found = await registry.execute_tool("give")
        assert found["error"].startswith(said)
        assert registry.pipeline.trail.entries[-1].outcome is Outcome.ERROR

    @table("value", [{"a": [SECRET], "b": 1}, SECRET, [SECRET], {"s": {SECRET}}])
    async def test_secrets_are_masked(self, value: object) -> None:
        pipeline = Pipeline(mask=Secrets([SECRET]))
        found = await ToolRegistry([Give(value)], pipeline=pipeline).execute_tool("give")
        assert SECRET not in repr(found)
        assert MASK in repr(found)


def len_of(text: str) -> int:
    """Count the letters."""
    return len(text)


class Colour(StrEnum):
    RED = "red"


class TestFunctions:
    async def test_schema_from_signature_and_docstring(self) -> None:
        def find(text: str, limit: Annotated[int, Field(ge=1)] = 5, colour: Colour = Colour.RED) -> None:
            """Find something.

            More about it.

            Args:
                text (str): What to look for,
                    on two lines.
                limit: How many.
            """

        tool = FunctionTool(find)
        assert (tool.name, tool.description) == ("find", "Find something.")
        assert FunctionTool(find, one_line_doc=False).description.startswith("Find something.\n\nMore about it.")
        schema: Any = tool.schema()
        assert schema["properties"]["text"] == {"type": "string", "description": "What to look for, on two lines."}
        assert schema["properties"]["limit"]["minimum"] == 1
        assert (schema["required"], schema["additionalProperties"]) == (["text"], False)
        assert "limit" in (await ToolRegistry([tool]).execute_tool("find", text="a", limit=0))["error"]


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

def several():
    return [FunctionTool(count, name="count_a")]

def no_list():
    return 5

def twice():
    return [FunctionTool(count, name="fresh"), FunctionTool(count, name="calculator")]

def raises():
    raise LookupError("no licence")
'''


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory with two distributions installed: one with many entry points, one that cannot be imported."""
    (tmp_path / "fleet_plugin.py").write_text(PLUGIN)
    (tmp_path / "fleet_broken.py").write_text("import sys\nsys.exit('no such luck')\n")
    points = {
        "fleet_plugin": ["Reverse", "count", "several", "no_list", "twice", "raises"],
        "fleet_broken": ["tool"],
    }
    for module, names in points.items():
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"{module}.{name} = {module}:{name}" for name in names]
        (info / "entry_points.txt").write_text("[swe_ai_fleet.tools]\n" + "\n".join(lines) + "\n")
    return tmp_path


class TestPlugins:
    async def test_installed_distributions_bring_their_tools_and_broken_ones_stop_nobody(
        self, site: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ToolRegistry, "_default", None)
        monkeypatch.syspath_prepend(site)
        names = ("Reverse", "count", "no_list", "twice", "raises")
        report = load_plugins(
            ToolRegistry.default(), only=["fleet_broken.tool", *(f"fleet_plugin.{name}" for name in names)]
        )
        # `several` is installed and not named.
        brought = {"fleet_plugin.Reverse": ("reverse",), "fleet_plugin.count": ("count",)}
        assert {plugin.name: tuple(plugin.tools) for plugin in report.loaded} == brought
        said = {
            "fleet_broken.tool": "SystemExit: no such luck",
            "fleet_plugin.no_list": "returned 5, not a list of tools",
            "fleet_plugin.raises": "LookupError: no licence",
            "fleet_plugin.twice": "there is a tool calculator already",
        }
        broken = {plugin.name: plugin.reason for plugin in report.broken}
        assert {name for name, reason in said.items() if reason in broken[name]} == broken.keys()
        assert "fresh" not in ToolRegistry.get_all_tools()
        assert await ToolRegistry.execute_tool("reverse", text="abc") == {"reversed": "cba"}
        assert await ToolRegistry.execute_tool("calculator", expression="6*7") == {"result": 42, "expression": "6*7"}
