"""Tools: the operations of agents. One pipeline validates, checks, audits and limits all of them.

The default registry's own tools are attributes of this package (`tools.calculator` is its `calculator`), and so are the
toolkits of extensions (`DatabaseTool`, `DockerTool`). Their types are in `__init__.pyi`.
"""

from swe_ai_fleet.tools.base_tool import BaseTool, ToolParameter
from swe_ai_fleet.tools.builtin import BuiltinSettings, BuiltinTools, builtin_tools
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.function_tool import FunctionTool
from swe_ai_fleet.tools.git import GitRemotes, GitTool, RemoteGrant
from swe_ai_fleet.tools.http import HttpPolicy, HttpTool
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pack import installed_packs
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


def __getattr__(name: str) -> object:
    # Other names, such as modules that are not loaded yet, must neither create the registry nor load an extension.
    if name in _REGISTERED:
        return ToolRegistry.get_tool(name)
    for pack in installed_packs() if name.endswith("Tool") else ():
        if pack.kit.__name__ == name:
            return pack.kit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
