"""Chats from settings: their rules, their tools, their model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from swe_ai_fleet.agents.function_calling.setup import Setup, Tool
from swe_ai_fleet.domain.task import PlanningMode
from swe_ai_fleet.extensions.chat.answering import Answering
from swe_ai_fleet.extensions.chat.chat import Chat, answering_chats
from swe_ai_fleet.extensions.chat.drive import TenantChats
from swe_ai_fleet.extensions.chat.reply_run import ChatRules
from swe_ai_fleet.extensions.chat.session import KeyValueChats
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.ports import KeyValue, Memories
from swe_ai_fleet.runtime.execution_tools import FleetView, TaskStarter
from swe_ai_fleet.runtime.factories import open_model
from swe_ai_fleet.runtime.run_deps import chat_limits, model_prices
from swe_ai_fleet.runtime.tool_services import operator_tools, secret_mask, tool_access, with_isolation_level
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.base_tool import BaseTool
from swe_ai_fleet.tools.builtin import BuiltinSettings, builtin_tools
from swe_ai_fleet.tools.operation import Toolkit

_RESERVED = frozenset(
    {"list_executions", "show_execution", "start_task", "search_memory", "remember", "calculator", "python_executor",
     "read_webpage", "web_search", "search_wikipedia", "file_reader", "final_answer"}
)  # fmt: skip
_log = structlog.get_logger(__name__)
MODEL_TIMEOUT_SECONDS = 10.0
"""How long a message waits for a model server that is down."""


@asynccontextmanager
async def open_chats(
    settings: Settings,
    *,
    store: KeyValue,
    executions: Executions,
    fleet: Callable[[str], FleetView | None] = lambda _: None,
    starter: Callable[[str], TaskStarter | None] = lambda _: None,
    memories: Memories | None = None,
    tools: Sequence[Tool] = (),
) -> AsyncGenerator[Callable[[str], Chat]]:
    """The chats of a service by tenant, over one model and one store; no tenant sees another's.

    Args:
        settings: The model, the limits, the secrets.
        store: Stores the sessions: the bucket `CHATS`.
        executions: The executions that messages become.
        fleet: Shows the executions of a tenant; None: its chats cannot see any.
        starter: Starts the tasks that a person of a tenant confirmed; None: its chats cannot start any.
        memories: The long-term memory; None: there is none.
        tools: Tools in addition to the built-in ones and the fleet's.

    Raises:
        InvalidRequest: No model server is configured, or a setting is malformed.
    """
    timeout = min(settings.model_patience_seconds, MODEL_TIMEOUT_SECONDS)
    async with (
        open_model(settings.model_copy(update={"model_patience_seconds": timeout})) as model,
        mcp_tools(settings) as mcp,
    ):
        offered, stored, mask = (*chat_tools(settings), *mcp, *tools), KeyValueChats(store), secret_mask(settings)

        def chats(tenant: str) -> TenantChats:
            answering = Answering(
                model=model,
                # The model pool retries by itself.
                rules=chat_rules(settings, retry_waits=()),
                setup=Setup(parallel=settings.parallel_calls, prices=model_prices(settings), model_name=settings.model),
                fleet=fleet(tenant),
                starter=starter(tenant),
                memories=memories,
                secrets=mask,
            ).offering(offered)
            return TenantChats(answering=answering, store=stored, tenant=tenant, audit_key=settings.audit_key.encode())

        async with answering_chats(executions, chats) as answering:
            yield answering


def chat_rules(settings: Settings, *, retry_waits: Sequence[float]) -> ChatRules:
    """The rules of chats, from settings."""
    return ChatRules(
        limits=chat_limits(settings),
        mode=PlanningMode(settings.planning_mode),
        threshold=settings.hybrid_threshold,
        retry_waits=tuple(retry_waits),
    )


@asynccontextmanager
async def mcp_tools(settings: Settings) -> AsyncGenerator[tuple[Toolkit, ...]]:
    """The tools of the configured MCP servers that only read, by the settings or by the server's `readOnlyHint`.

    Tools that change something are for agents, in their clones.
    """
    if not settings.mcp_servers:
        yield ()
        return
    confined = await with_isolation_level(settings)
    async with operator_tools(confined, settings.home / "chats" / "scratch", reserved=_RESERVED, hints=True) as kits:
        for kit in kits:
            kit.definitions = {
                name: definition for name, definition in kit.definitions.items() if definition.spec.read_only
            }
        yield kits


def chat_tools(settings: Settings, *, files: Path | None = None) -> tuple[BaseTool, ...]:
    """The built-in tools of a chat, without those whose server the settings do not name, and plug-ins' read-only tools.

    Code runs in a new sandbox for each call, in a directory that is deleted after it.

    Args:
        settings: The servers and the plug-ins.
        files: The directory that `file_reader` reads; None: there is no such tool.

    Raises:
        InvalidRequest: A plug-in cannot be used.
    """
    names = {"calculator", "python_executor", "read_webpage"}
    names |= {"web_search"} if settings.search_url else set()
    names |= {"search_wikipedia"} if settings.wikipedia_url else set()
    names |= {"file_reader"} if files is not None else set()
    built = BuiltinSettings(search_url=settings.search_url, wikipedia_url=settings.wikipedia_url, file_root=files)
    plugins = tool_access(settings).plugins
    return (
        *(tool for tool in builtin_tools(built) if tool.name in names),
        *(tool for tool in plugins if tool.read_only),
    )
