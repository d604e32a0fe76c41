"""Tools: what agents can do, each operation validated, checked, audited and bounded in one way.

The tools of the default registry stand here by name, too: `tools.calculator` is `ToolRegistry.get_tool("calculator")`.
"""

from swe_ai_fleet.tools.builtin import BuiltinSettings, BuiltinTools, builtin_tools
from swe_ai_fleet.tools.db import DatabaseTool
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.docker import DockerTool
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.git import GitTool
from swe_ai_fleet.tools.http.tool import HttpPolicy, HttpTool
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.registry.base_tool import BaseTool, ToolParameter
from swe_ai_fleet.tools.registry.function_tool import FunctionTool
from swe_ai_fleet.tools.registry.registry import PluginReport, ToolRegistry, load_plugins
from swe_ai_fleet.tools.registry.toolkit import RegisteredTools
from swe_ai_fleet.tools.shell import ShellTool
from swe_ai_fleet.tools.tests import TestTool

__all__ = [
    "BaseTool",
    "BuiltinSettings",
    "BuiltinTools",
    "DatabaseTool",
    "DockerTool",
    "FileTool",
    "FunctionTool",
    "GitTool",
    "HttpPolicy",
    "HttpTool",
    "Pipeline",
    "PluginReport",
    "RegisteredTools",
    "ShellTool",
    "TestTool",
    "ToolFailure",
    "ToolLimits",
    "ToolParameter",
    "ToolRefusal",
    "ToolRegistry",
    "Toolkit",
    "builtin_tools",
    "load_plugins",
    "operation",
]


def __getattr__(name: str) -> BaseTool:
    tool = None if name.startswith("_") else ToolRegistry.get_all_tools().get(name)
    if tool is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return tool
