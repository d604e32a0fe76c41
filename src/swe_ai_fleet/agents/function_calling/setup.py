"""Setup of function calling: the functions, the rules of a run, and the responses of a run to its caller."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypedDict, cast

from swe_ai_fleet.agents.agent_run import Rules
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.loop_guard import LoopAction, LoopGuard
from swe_ai_fleet.agents.model_middleware import RETRY_WAITS, RetryingModel, ShownTools, WholeResults
from swe_ai_fleet.agents.run_deps import ANY_MODEL
from swe_ai_fleet.agents.toolbox import REQUEST_TOOLS, Toolbox
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Limits, Prices
from swe_ai_fleet.domain.event import (
    CallRepaired,
    Event,
    EventBody,
    HistoryCondensed,
    LoopNoticed,
    MessageAdded,
    ModelReplied,
    ToolFinished,
    ToolStarted,
    Writer,
)
from swe_ai_fleet.domain.json_values import mapping
from swe_ai_fleet.domain.message import ModelCapabilities, Sampling, ToolMessage
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.tool import OperationSpec, ToolResult
from swe_ai_fleet.ports import ChatModel, Journal, SecretMask
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.base_tool import BaseTool
from swe_ai_fleet.tools.builtin.fetching import Network
from swe_ai_fleet.tools.function_tool import FunctionTool
from swe_ai_fleet.tools.http_transport import HttpPolicy
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.registry import (
    FINAL_ANSWER,
    RegisteredOperation,
    RegisteredTools,
    RequestTools,
    ToolRegistry,
    as_tool,
)
from swe_ai_fleet.tools.result_cache import ResultCache

MAX_KEPT_BYTES = 64 * 1024 * 1024
"""The most bytes of whole results together; later results are kept as the model got them."""
_ERROR = "Error: "
_UNLIMITED = 1_000_000
_A_DAY = 24 * 3600.0
FUNCTION_CALLING = Limits(max_iterations=10, max_tool_calls=_UNLIMITED, timeout_seconds=_A_DAY)
"""The limits of `FunctionCallingAgent`: only on iterations; each tool has its own time limit."""
CHAT = Limits(max_iterations=5, max_tool_calls=20, timeout_seconds=60.0)
"""The limits of a planner or a chat, where a person waits for the answer."""
Tool = Callable[..., object] | BaseTool | type[BaseTool] | Toolkit | Mapping[str, object] | str
"""A tool as callers may give it: a function, a BaseTool, a toolkit with all its operations, a registered tool by its
name or by its definition, as `ToolRegistry.get_tool_definitions` returns it."""
LOOP_LADDER = (LoopAction.NUDGE, LoopAction.STRONG_NUDGE, LoopAction.STOP)
NOT_OFFERED = frozenset({"ask_user", "propose_approach", FINAL_ANSWER, REQUEST_TOOLS})
"""Registered tools that `request_tools` does not offer; callers must name them."""


class AgentResponse(TypedDict):
    """One event of a run. `channel` is `tool` for calls and their results, `run` for everything else.

    `step` is a reply of the model or the result of a call, `log` a note of the run itself, `final` the answer, which is
    always the last response. `metadata` is JSON: `event` names the event, the rest depends on it.
    """

    type: Literal["step", "final", "log"]
    channel: Literal["run", "tool"]
    value: str
    metadata: dict[str, object]


@dataclass(slots=True, kw_only=True)
class AgentTask:
    """The state of a task. `result` is None until there is one; `steps_taken` counts the model's turns.

    `results` are the whole results of its tool calls by call id, even if the model got only their beginning.
    """

    id: str
    description: str
    result: str | None = None
    steps_taken: int = 0
    results: Mapping[str, str] = field(default_factory=dict[str, str])


class Narration:
    """A `Journal` that collects whole results by call id, updates the task, and turns each event into a response.

    Events are written to `journal`, where there is one; whole results go to `store`, too.
    """

    def __init__(
        self,
        task: AgentTask,
        on_response: Callable[[AgentResponse], None],
        *,
        journal: Journal | None = None,
        store: Callable[[bytes], Awaitable[BlobRef]] | None = None,
    ) -> None:
        self._task = task
        self._on_response = on_response
        self._journal = journal
        self._store = store
        self._writer = Writer(tenant="", execution_id=task.id, task_id=task.id)
        self._ordinal = 0
        self._kept: dict[str, str] = {}
        self._kept_bytes = 0
        self.results: dict[str, str] = {}
        """The whole result of each call, by call id."""
        task.results = self.results

    async def append(self, body: EventBody) -> Event:
        event = self.post(body)
        await self.flush()
        return event

    def post(self, body: EventBody) -> Event:
        """Tell of an event, once its journal has taken it. Raises as the journal does."""
        event = self._event(body) if self._journal is None else self._journal.post(body)
        match body:
            case ModelReplied():
                self._replied(body)
            case ToolStarted():
                self._say("log", "tool", f"{body.entry.operation} started", "tool_started", _call(body.entry))
            case ToolFinished():
                self._finished(body.entry, body.result)
            case MessageAdded(message=ToolMessage() as observation):
                self._observed(observation)
            case MessageAdded():
                self.log(body.message.content, "message_added", step=body.step)
            case LoopNoticed():
                self.log(body.pattern, "loop_noticed", step=body.step, advice=body.advice)
            case CallRepaired():
                self.log("; ".join(body.repairs), "call_repaired", step=body.step, call_id=body.call_id)
            case HistoryCondensed():
                counts: dict[str, object] = {"tokens_before": body.tokens_before, "tokens_after": body.tokens_after}
                self.log(body.method, "history_condensed", step=body.step, **counts)
            case _:
                self.log(body.type, body.type)
        return event

    def _event(self, body: EventBody) -> Event:
        self._ordinal += 1
        return self._writer.event(body, ordinal=self._ordinal, at=now())

    async def flush(self) -> None:
        """Have what was posted written; without a journal nothing is buffered."""
        if self._journal is not None:
            await self._journal.flush()

    async def keep(self, data: bytes) -> BlobRef:
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._kept and self._kept_bytes + len(data) <= MAX_KEPT_BYTES:
            self._kept[digest] = data.decode("utf-8", "replace")
            self._kept_bytes += len(data)
        if self._store is not None:
            return await self._store(data)
        return BlobRef(name=f"{self._task.id}/{digest}", digest=digest, size=len(data), media_type="text/plain")

    def log(self, value: str, event: str, **metadata: object) -> None:
        self._say("log", "run", value, event, metadata)

    def delta(self, text: str) -> None:
        """Report a part of a streamed reply; a retried reply starts over."""
        self._say("log", "run", text, "delta", {})

    def step(self, value: str, event: str, **metadata: object) -> None:
        self._say("step", "run", value, event, metadata)

    def _replied(self, body: ModelReplied) -> None:
        self._task.steps_taken = body.step
        message = body.reply.message
        self.step(
            message.content,
            "model_replied",
            step=body.step,
            tool_calls=[
                {"id": call.call_id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls
            ],
            finish_reason=body.reply.finish_reason,
            duration_ms=body.duration_ms,
            prompt_tokens=body.reply.usage.prompt_tokens,
            completion_tokens=body.reply.usage.completion_tokens,
        )

    def _finished(self, entry: AuditEntry, result: ToolResult) -> None:
        whole = replace(result, content=self._kept.get(result.artifact, result.content)).observation()
        self.results[entry.call_id] = whole
        metadata: dict[str, object] = {
            **_call(entry),
            "success": result.success,
            "outcome": str(result.outcome),
            "cached": result.cached,
            "truncated": result.truncated,
            "characters": len(whole),
            "duration_ms": entry.duration_ms,
        }
        self._say("step", "tool", result.observation(), "tool_finished", metadata)

    def _observed(self, observation: ToolMessage) -> None:
        if observation.call_id in self.results:
            return
        self.results[observation.call_id] = observation.content
        if observation.content.startswith(_ERROR):
            metadata = {"call_id": observation.call_id, "tool": FINAL_ANSWER, "success": False}
            self._say("step", "tool", observation.content, "tool_finished", metadata)

    def _say(
        self,
        kind: Literal["step", "log"],
        channel: Literal["run", "tool"],
        value: str,
        event: str,
        metadata: Mapping[str, object],
    ) -> None:
        self._on_response({"type": kind, "channel": channel, "value": value, "metadata": {"event": event, **metadata}})


def _call(entry: AuditEntry) -> dict[str, object]:
    return {"call_id": entry.call_id, "tool": entry.operation, "arguments": dict(entry.arguments)}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The tools, limits and options of function calling.

    Attributes:
        model_name: The caller's name of the model, under which its price may be given too.
        max_tool_result_chars: How much of the beginning of a result is in the history.
    """

    tools: Mapping[str, BaseTool] = field(default_factory=dict[str, BaseTool])
    toolkits: tuple[Toolkit, ...] = ()
    idle: frozenset[str] = frozenset()
    limits: Limits = FUNCTION_CALLING
    prices: Mapping[str, Prices] = field(default_factory=dict[str, Prices])
    model_name: str = ""
    loop_threshold: int = 3
    loop_by_name: bool = False
    max_tool_result_chars: int = 3000
    tool_timeout: float = 30.0
    max_tool_errors: int = 3
    max_reminders: int = 0
    bare_answers: bool = True
    parallel: bool = True
    stream: bool = False
    retry_waits: tuple[float, ...] = RETRY_WAITS
    sampling: Sampling = field(default_factory=Sampling)
    images: bool | None = None
    mask: SecretMask | None = None
    pages: HttpPolicy = field(default_factory=HttpPolicy)
    network: Network = field(default_factory=Network)

    def __post_init__(self) -> None:
        if self.limits.max_cost and not self.prices:
            raise ValueError("limits.max_cost is set, but no model has a price; set FLEET_MODEL_PRICES or leave it out")

    def priced(self, budget: Budget, capabilities: ModelCapabilities) -> Budget:
        """The budget with the price of this model. Raises ValueError if it has none and the cost is limited."""
        names = (capabilities.model, self.model_name, ANY_MODEL)
        price = next((self.prices[name] for name in names if name in self.prices), None)
        if price is None and budget.limits.max_cost:
            raise ValueError(
                f"limits.max_cost is set, but the model {capabilities.model!r} has no price; prices are known of: "
                f"{', '.join(self.prices)}"
            )
        return Budget(budget.limits, prices=price, spent=budget.total())

    @cached_property
    def rules(self) -> Rules:
        return Rules(max_reminders=self.max_reminders, max_tool_errors=self.max_tool_errors, answer_at_limit=True)

    @property
    def known_tools(self) -> tuple[str, ...]:
        asking = (REQUEST_TOOLS,) if self.idle else ()
        return (*(spec.name for spec in self.specs), *self.idle, *asking, FINAL_ANSWER)

    def toolbox(self, narration: Narration, task: AgentTask, *, trail: AuditTrail | None = None) -> Toolbox:
        """The tools of a run; a `trail` is that of a run in the log, whose events are narrated too."""
        if trail is not None:
            trail.journal = narration
        pipeline = Pipeline(
            trail=trail or AuditTrail(execution_id=task.id, journal=narration),
            mask=self.mask,
            store=narration.keep,
            cache=ResultCache(outside=True),
            limits=ToolLimits(observation_chars=self.max_tool_result_chars, beginning_only=True),
        )
        kit = RegisteredTools((), pipeline=pipeline)
        kit.definitions = {
            name: RegisteredOperation(tool, time_limit_seconds=self._seconds(tool), needs_value=True)
            for name, tool in self.tools.items()
        }
        kits = {str(number): each for number, each in enumerate((kit, *self.toolkits))}
        return Toolbox(kits, pipeline, idle=self.idle, parallel=self.parallel, bare_answers=self.bare_answers)

    def model(
        self,
        model: ChatModel,
        results: Mapping[str, str],
        *,
        answer: OperationSpec | None = None,
        on_retry: Callable[[str], None] | None = None,
    ) -> RetryingModel:
        """The model with retries, with `answer` as its `final_answer`, and whole `results` when it must answer."""
        middleware = ShownTools(model, {FINAL_ANSWER: answer})
        return RetryingModel(WholeResults(middleware, results), waits=self.retry_waits, on_retry=on_retry)

    def guard(self, toolbox: Toolbox, *, threshold: int) -> LoopGuard:
        return LoopGuard(toolbox.specs, repeats=threshold, ladder=LOOP_LADDER, by_name_alone=self.loop_by_name)

    @cached_property
    def specs(self) -> tuple[OperationSpec, ...]:
        """The tools offered to the model at first, without `final_answer` and `request_tools`."""
        own = [RegisteredOperation(tool).spec for name, tool in self.tools.items() if name not in self.idle]
        return (*own, *(definition.spec for kit in self.toolkits for definition in kit.definitions.values()))

    def _seconds(self, tool: BaseTool) -> float:
        own = tool.time_limit_seconds
        return self.tool_timeout if own == BaseTool.time_limit_seconds else own


def gathered(
    tools: Iterable[Tool], *, registry: ToolRegistry | None = None, one_line_doc: bool, tool_timeout: float
) -> tuple[dict[str, BaseTool], tuple[Toolkit, ...], frozenset[str]]:
    """The given tools by name, the toolkits, and the names of the tools that are offered only on request.

    A plain function counts as read-only: the result of an identical call is reused, and calls may run concurrently.
    `FunctionTool(function, read_only=False)` has side effects.

    Args:
        tools: Functions, BaseTools, toolkits, names and definitions of registered tools. `request_tools` adds all tools
            of its registry.
        one_line_doc: Whether the model gets only the first line of a function's docstring.

    Raises ValueError (duplicate name, definition without a name), InvalidRequest (no schema is possible), NotFound.
    """
    base_tools: list[BaseTool] = []
    kits: list[Toolkit] = []
    for entry in tools:
        if isinstance(entry, Toolkit):
            kits.append(entry)
        elif isinstance(entry, str | Mapping):
            name = entry if isinstance(entry, str) else _name_in(cast("Mapping[str, object]", entry))
            base_tools.append((registry or ToolRegistry.default()).get_tool(name))
        elif isinstance(entry, BaseTool | type):
            base_tools.append(as_tool(entry))
        else:
            base_tools.append(
                FunctionTool(entry, one_line_doc=one_line_doc, read_only=True, time_limit_seconds=tool_timeout)
            )
    names = Counter([tool.name for tool in base_tools])
    names.update(definition.spec.name for kit in kits for definition in kit.definitions.values())
    twice = [name for name, times in names.items() if times > 1]
    if twice:
        raise ValueError(f"two tools have the name {twice[0]!r}")
    asking = next((tool for tool in base_tools if isinstance(tool, RequestTools)), None)
    more = {} if asking is None else asking.registry.get_all_tools()
    hidden = {name: tool for name, tool in more.items() if name not in names and name not in NOT_OFFERED}
    offered = {tool.name: tool for tool in base_tools if tool is not asking and tool.name != FINAL_ANSWER}
    return {**offered, **hidden}, tuple(kits), frozenset(hidden)


def _name_in(definition: Mapping[str, object]) -> str:
    """The name of the tool that a definition describes. Raises ValueError if it has none."""
    name = mapping(definition, "function").get("name") or definition.get("name")
    if not isinstance(name, str):
        raise ValueError(f"a tool's definition has a function with a name; {definition!r:.120} has none")
    return name
