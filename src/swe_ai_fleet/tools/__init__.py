"""Tools: the operations of agents. One pipeline validates, checks, audits and limits all of them.

The default registry's own tools are attributes of this package: `tools.calculator` is its `calculator`.
"""

from swe_ai_fleet.tools.base_tool import BaseTool, ToolParameter
from swe_ai_fleet.tools.builtin import BuiltinSettings, BuiltinTools, builtin_tools
from swe_ai_fleet.tools.db import DatabaseTool
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.docker import DockerTool
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.function_tool import FunctionTool
from swe_ai_fleet.tools.git import GitRemotes, GitTool, RemoteGrant
from swe_ai_fleet.tools.http import HttpPolicy, HttpTool
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.registry import PluginReport, RegisteredTools, ToolRegistry, load_plugins
from swe_ai_fleet.tools.result_cache import ResultCache as ResultCache
from swe_ai_fleet.tools.result_cache import SharedResults as SharedResults
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
    "GitRemotes",
    "GitTool",
    "HttpPolicy",
    "HttpTool",
    "Pipeline",
    "PluginReport",
    "RegisteredTools",
    "RemoteGrant",
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


_REGISTERED = frozenset(
    {
        *("calculator", "python_executor", "file_reader", "web_search", "read_webpage", "search_wikipedia"),
        *("ask_user", "propose_approach", "final_answer", "request_tools", "search_memory", "research"),
        *("call_planner", "call_verifier", "call_executor", "call_generator"),
    }
)


def __getattr__(name: str) -> BaseTool:
    # Other names, such as modules that are not loaded yet, must not create the registry.
    if name not in _REGISTERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return ToolRegistry.get_tool(name)
