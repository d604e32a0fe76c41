"""SWE AI Fleet: several coding agents solve one task in parallel, and evidence picks the winner.

`ToolEnabledAgent` (which gives an `AgentResult`), `FunctionCallingAgent`, `FunctionCallingClient`, `DeliberateAsync`
and `VLLMAgentJob` are the entry points of the library, beside those of extensions (`ChatSession`, `MemoryManager`,
`WorkflowExecutor`, `LLMAgent`); each is loaded when first asked for, since `VLLMAgentJob` brings Ray along.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swe_ai_fleet.domain.candidate import AgentResult
    from swe_ai_fleet.runtime.deliberate_async import DeliberateAsync
    from swe_ai_fleet.runtime.function_calling_agent import FunctionCallingAgent, FunctionCallingClient
    from swe_ai_fleet.runtime.ray_jobs.vllm_agent_job import VLLMAgentJob
    from swe_ai_fleet.runtime.tool_enabled_agent import ToolEnabledAgent

__all__ = [
    "AgentResult",
    "DeliberateAsync",
    "FunctionCallingAgent",
    "FunctionCallingClient",
    "ToolEnabledAgent",
    "VLLMAgentJob",
]
_HOMES = {
    "AgentResult": "swe_ai_fleet.domain.candidate",
    "DeliberateAsync": "swe_ai_fleet.runtime.deliberate_async",
    "FunctionCallingAgent": "swe_ai_fleet.runtime.function_calling_agent",
    "FunctionCallingClient": "swe_ai_fleet.runtime.function_calling_agent",
    "ToolEnabledAgent": "swe_ai_fleet.runtime.tool_enabled_agent",
    "VLLMAgentJob": "swe_ai_fleet.runtime.ray_jobs.vllm_agent_job",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if not name.startswith("_"):
        from swe_ai_fleet.extension_registry import load_export

        with suppress(KeyError):
            return load_export(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
