"""The nodes of a workflow carried out in this process, without a fleet."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from swe_ai_fleet.domain.approval import ApprovalDecision
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.workflow import JsonValue, Node, NodeType
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.runtime.llm_agent import LLMAgent, Log
from swe_ai_fleet.runtime.memory_manager import MemoryManager
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.registry.plain_text import jsonable
from swe_ai_fleet.tools.registry.registry import ToolRegistry
from swe_ai_fleet.workflows.answers import answer_output
from swe_ai_fleet.workflows.runner import NodeApproval, NodeDecision, NodeOutcome

Decided = NodeDecision | ApprovalDecision | bool
Approve = Callable[[NodeApproval], Decided | Awaitable[Decided]]
"""Asks a person: a decision, with or without text; True is approved, False rejected."""


class LocalNodes:
    """A `NodeRunner` in this process.

    Args:
        registry: Where tools are looked up.
        approve: Asks people; None: nobody can be asked.
        mask: Hides secrets in what nodes give.
        log: Is told what agents do, line by line.
        model_params: As on FunctionCallingAgent.
        settings: Where the model is, and everything else.
    """

    def __init__(
        self,
        *,
        registry: ToolRegistry,
        approve: Approve | None,
        mask: SecretMask,
        log: Log,
        model_params: Mapping[str, object] | None,
        settings: Settings,
    ) -> None:
        self._registry = registry
        self._approve = approve
        self._mask = mask
        self._log = log
        self._model_params = model_params
        self._settings = settings
        self._memories: dict[str, MemoryManager] = {}

    async def run(
        self, node: Node, inputs: Mapping[str, JsonValue], *, node_id: str, attempt: int, earlier: str
    ) -> NodeOutcome:
        """Carry out an agent or a tool node; nothing outlives this process, so nothing is joined."""
        del node_id, attempt, earlier
        if node.type is NodeType.TOOL:
            return await self._called(node.tool, inputs)
        outcome = await self._agent(node).run(inputs, self._log)
        return NodeOutcome(output=masked(outcome.output, self._mask), usage=outcome.usage)

    async def decide(self, approval: NodeApproval) -> NodeDecision:
        """Ask. Raises PreconditionFailed where nobody can be asked."""
        if self._approve is None:
            raise PreconditionFailed(
                "there is nobody to ask", field="approve", hint="WorkflowExecutor(..., approve=...)"
            )
        decided = self._approve(approval)
        if inspect.isawaitable(decided):
            decided = await decided
        if isinstance(decided, bool):
            decided = ApprovalDecision.APPROVED if decided else ApprovalDecision.REJECTED
        return decided if isinstance(decided, NodeDecision) else NodeDecision(decision=decided)

    def execution_of(self, node: Node, *, node_id: str, attempt: int) -> str:
        """No executions are begun here."""
        del node, node_id, attempt
        return ""

    async def close(self) -> None:
        """Close the memories that were opened; the next node opens them again."""
        opened, self._memories = self._memories, {}
        for memory in opened.values():
            await memory.close()

    def _agent(self, node: Node) -> LLMAgent:
        memory = None
        if node.agent_config.use_memory:
            # Opening one loads the model of its embeddings: the items of a map share it.
            memory = self._memories.setdefault(node.id, MemoryManager(node.id, settings=self._settings))
        return LLMAgent(
            node, memory=memory, registry=self._registry, model_params=self._model_params, settings=self._settings
        )

    async def _called(self, name: str, arguments: Mapping[str, JsonValue]) -> NodeOutcome:
        value: object = await self._registry.execute_tool(name, **arguments)
        if failed := _error_in(value):
            raise PreconditionFailed(self._mask(failed.removeprefix("Error: ")), field="tool")
        result = self._registry.get_tool(name).present(value)
        output: dict[str, JsonValue] = {
            "content": result.content,
            "data": jsonable(dict(result.metadata)) if result.metadata else answer_output(result.content)["data"],
            "exit_code": result.exit_code,
            "truncated": result.truncated,
        }
        return NodeOutcome(output=masked(output, self._mask), usage=Usage(tool_calls=1))


def _error_in(value: object) -> str:
    """Why a call failed; empty where it did not."""
    error = cast("Mapping[str, object]", value).get("error") if isinstance(value, Mapping) else None
    return error if isinstance(error, str) else ""


def masked(value: JsonValue, mask: SecretMask) -> JsonValue:
    """A JSON value with secrets hidden in all its texts."""
    match value:
        case str():
            return mask(value)
        case Mapping():
            fields = cast("Mapping[str, Any]", value)
            return {mask(name): masked(each, mask) for name, each in fields.items()}
        case list():
            return [masked(each, mask) for each in cast("list[Any]", value)]
        case _:
            return value
