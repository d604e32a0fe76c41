"""One turn of a chat: references in the message, recalled memories, the model's answer, the things that it names."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import structlog

from swe_ai_fleet.agents.function_calling.caller import documentation
from swe_ai_fleet.agents.function_calling.setup import Setup, Tool, gathered
from swe_ai_fleet.agents.recollections import presented
from swe_ai_fleet.agents.references.naming import Naming, last_list
from swe_ai_fleet.agents.references.phrases import NamedThing
from swe_ai_fleet.agents.references.resolving import Certainty, ResolvedPhrase, note, question, resolve, vague_question
from swe_ai_fleet.conversations.document import Table, read
from swe_ai_fleet.conversations.pages import Channel, pages, rendered
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.memory import MemoryScope
from swe_ai_fleet.domain.message import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.extensions.chat import reply_run
from swe_ai_fleet.extensions.chat.reply_run import ChatRules, Recording, Reply, reply_to
from swe_ai_fleet.extensions.chat.session import MAX_ANSWER_CHARS, ChatMessage, ChatState, ChatTurn, shown_again
from swe_ai_fleet.extensions.chat.tools import (
    TurnContext,
    asks_to_remember,
    decision,
    fleet_tools,
    keep,
    proposal_in,
    proposed,
    table_of,
    to_remember,
    untagged,
)
from swe_ai_fleet.ports import ChatModel, Memories
from swe_ai_fleet.runtime.execution_tools import FleetView, Proposal, TaskStarter
from swe_ai_fleet.tools.secrets import Secrets

MAX_TABLES = 3
_MASK_TRIES = 4
_RECALLED = 3
"""The most memories that are recalled for a message."""
_RECALL_SECONDS = 3.0
_KEEP_SECONDS = 10.0
QUESTION, STARTED, NOT_STARTED = "question", "started", "not_started"
"""The stop reasons of turns without a model."""
_GOOD_ENDS = frozenset({StopReason.FINAL_ANSWER, StopReason.NO_TOOL_CALLS})
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A turn, the things that it named, and the task that it proposed."""

    turn: ChatTurn
    things: tuple[NamedThing, ...] = ()
    proposal: Proposal | None = None


@dataclass(frozen=True, kw_only=True)
class Answering:
    """Answers the turns of chats.

    Attributes:
        model: The model, without retries.
        setup: The tools of every turn, and how tools are called.
        rules: The rules of the chat.
        fleet: Shows executions; None: chats cannot see any.
        starter: Starts tasks; None: chats cannot start any.
        memories: Long-term memories; None: there are none.
        secrets: Masks secrets in everything that is shown or stored.
        system_prompt: The system prompt; `{tools}` in it is replaced by the documentation of the tools.
    """

    model: ChatModel
    setup: Setup
    rules: ChatRules
    fleet: FleetView | None = None
    starter: TaskStarter | None = None
    memories: Memories | None = None
    secrets: Secrets = field(default_factory=Secrets)
    system_prompt: str = reply_run.SYSTEM_PROMPT

    def offering(self, tools: Sequence[Tool]) -> Answering:
        """A copy with more tools than the fleet's: functions, BaseTools, toolkits, names of registered tools.

        Raises ValueError (two tools with the same name).
        """
        by_name, kits, idle = gathered(tools, one_line_doc=True, tool_timeout=self.setup.tool_timeout)
        setup = replace(
            self.setup,
            tools=by_name,
            toolkits=kits,
            idle=idle,
            limits=self.rules.limits,
            retry_waits=self.rules.retry_waits,
            mask=self.secrets,
            stream=True,
        )
        return replace(self, setup=setup)

    async def answer(self, session: ChatState, message: ChatMessage, now: str, recording: Recording) -> Answered:
        """Answer a message. Model faults and spent limits are in the answer; faults of the log and bugs are raised.

        Args:
            session: The state of the session before the message.
            message: The message.
            now: The time, ISO 8601.
            recording: Records the run of the model, which an earlier process may have begun.
        """
        turn, text = message.number, message.text
        naming = Naming(turn, first_group=session.groups + 1)
        naming.person(text, session.things)
        if self.starter is not None and (confirmed := confirmed_task(session, message)) is not None:
            return await self._started(self.starter, confirmed, message, naming)
        references = resolve(text, (*session.things, *naming.things), turn=turn)
        if ask := question(references):
            naming.answer(ask)
            asked = ChatTurn.without_model(message, ask, QUESTION, success=True)
            asked = replace(asked, references=shown_again(references))
            return Answered(turn=asked, things=tuple(naming.things))
        for reference in references:
            if reference.standing is Certainty.RESOLVED:
                naming.chosen(reference.things)
        context = TurnContext(
            text=text,
            scope=MemoryScope(tenant=session.tenant, namespaces=session.namespaces),
            source=f"agent:chat-{session.session_id}",
            now=now,
            nonce=session.nonce,
        )
        setup = self._setup(context)

        async def opening() -> tuple[Message, ...]:
            content = await self._content(session, context, note(references))
            system = SystemMessage(content=self._system(setup))
            return (system, *session.model_messages, UserMessage(content=content))

        def resumed(results: Sequence[ToolResult]) -> None:
            context.proposal = proposal_in(results)

        reply = await reply_to(
            text, opening, resumed, model=self.model, setup=setup, rules=self.rules, recording=recording
        )
        return self._replied(message, reply, naming, references)

    async def _content(self, session: ChatState, context: TurnContext, about: str) -> str:
        """The message as the model gets it: notes of the system, if any, and the person's words."""
        notes = [await self._recalled(context), about]
        if waiting := session.waiting:
            left = reply_run.DECLINED if decision(context.text) == "no" else reply_run.LAPSED
            notes.append(reply_run.UNSURE if waiting.key else left)
        notes.append(await self._remember(context))
        notes = [text for text in notes if text]
        return "\n\n".join([*notes, reply_run.MESSAGE, context.text]) if notes else context.text

    def _replied(
        self, message: ChatMessage, reply: Reply, naming: Naming, references: tuple[ResolvedPhrase, ...]
    ) -> Answered:
        for call, result in reply.calls:
            naming.call(call, result)
        success = reply.trajectory.stop_reason in _GOOD_ENDS and bool(reply.trajectory.answer.strip())
        answer = self._clean(reply.trajectory.answer) or self._excuse(reply)
        if "?" not in answer and (unclear := vague_question(references)):
            answer = f"{answer}\n\n{unclear}"
        naming.answer(answer)
        results = [table_of(call.name, result) for call, result in reply.calls]
        listed = bool(last_list(answer)) or any(isinstance(part, Table) for part in read(answer))
        tables = () if listed else tuple(table for table in results if table)[-MAX_TABLES:]
        proposal = proposal_in(result for _, result in reply.calls)
        if proposal is not None:
            proposal = replace(proposal, turn=message.number)
            answer = f"{untagged(answer)}\n\n{self._clean(proposed(proposal))}"
        turn = ChatTurn(
            number=message.number,
            text=message.text,
            answer=answer,
            stop_reason=str(reply.trajectory.stop_reason),
            success=success,
            tools=tuple(call.name for call, _ in reply.calls),
            messages=_ending(reply.messages, answer),
            tables=tables,
            references=shown_again(references),
        )
        return Answered(turn=turn, things=tuple(naming.things), proposal=proposal)

    async def _started(
        self, starter: TaskStarter, proposal: Proposal, message: ChatMessage, naming: Naming
    ) -> Answered:
        """Start the task that the person confirmed, under its key, without the model."""
        execution_id = ""
        try:
            # After a cancellation it must be known whether the task was started.
            async with asyncio.timeout(self.rules.limits.timeout_seconds):
                start = starter.start(replace(proposal, by=message.by), key=proposal.key)
                execution_id = await asyncio.shield(start)
            answer, waiting = reply_run.STARTED.format(execution_id=execution_id), None
            naming.started(execution_id, proposal.description)
        except (FleetError, TimeoutError) as fault:
            why = self._clean(str(fault)) if isinstance(fault, FleetError) else reply_run.STARTING
            answer = reply_run.NOT_STARTED.format(why=why)
            waiting = replace(proposal, turn=message.number)
        stop_reason = STARTED if execution_id else NOT_STARTED
        turn = ChatTurn.without_model(message, answer, stop_reason, success=bool(execution_id))
        turn = replace(turn, execution_id=execution_id)
        return Answered(turn=turn, things=tuple(naming.things), proposal=waiting)

    async def _recalled(self, context: TurnContext) -> str:
        """The recalled memories for the model; empty if there are none."""
        if self.memories is None or not context.scope.namespaces:
            return ""
        try:
            async with asyncio.timeout(_RECALL_SECONDS):
                notes = await self.memories.recall(context.text[:2_000], context.scope, limit=_RECALLED)
        except (FleetError, TimeoutError) as fault:
            _log.warning("chat.nothing_recalled", reason=str(fault) or "timed out")
            return ""
        return presented(notes, self.secrets, seed=context.nonce)

    async def _remember(self, context: TurnContext) -> str:
        """Store the text that the person wants remembered; returns the note for the model."""
        if not asks_to_remember(context.text):
            return ""
        if self.memories is None or not context.scope.namespaces:
            return reply_run.NO_MEMORY
        if not to_remember(context.text):
            return ""  # the model knows what "this" refers to, and has a tool for it
        try:
            async with asyncio.timeout(_KEEP_SECONDS):
                return reply_run.KEPT.format(text=await keep(self.memories, context))
        except (FleetError, TimeoutError) as fault:
            return reply_run.NOT_KEPT.format(why=str(fault) or "memory is not available")

    def _setup(self, context: TurnContext) -> Setup:
        tools = fleet_tools(
            context, fleet=self.fleet, proposes=self.starter is not None, memories=self.memories, mask=self.secrets
        )
        own = {tool.name: tool for tool in tools}
        others = {name: tool for name, tool in self.setup.tools.items() if name not in own}
        return replace(self.setup, tools={**own, **others})

    def _system(self, setup: Setup) -> str:
        docs = documentation(setup.specs)
        return self.system_prompt.replace("{tools}", docs).replace("{tool_docs}", docs)

    def _clean(self, text: str) -> str:
        clean = self.secrets(well_formed(text)).strip()
        if len(clean) > MAX_ANSWER_CHARS:
            clean = f"{clean[:MAX_ANSWER_CHARS]}\n\n[cut here]"
        # A secret with markup or escapes in it becomes readable in the rendered text.
        for _ in range(_MASK_TRIES):
            text = rendered(clean, Channel.PLAIN)
            masked = self.secrets(text)
            if masked == text:
                return clean
            clean = masked
        return reply_run.WITHHELD

    def _excuse(self, reply: Reply) -> str:
        stop = reply.trajectory.stop_reason
        if stop is StopReason.MODEL_ERROR:
            return reply_run.UNREACHABLE
        return reply_run.NO_ANSWER.format(why=str(stop).replace("_", " "))


def confirmed_task(session: ChatState, message: ChatMessage) -> Proposal | None:
    """The task that a message confirms, with the key of its start: a yes to a proposal that the person has seen."""
    waiting = session.waiting
    if waiting is None or message.seen_turn not in (None, waiting.turn) or decision(message.text) != "yes":
        return None
    # The key is the same in every process.
    return replace(waiting, key=waiting.key or f"chat-{session.session_id}-{session.nonce[:8]}-{waiting.turn}")


def _ending(messages: Sequence[Message], answer: str) -> tuple[Message, ...]:
    """The messages of a turn with its answer as the last one."""
    ending = list(messages)
    if isinstance(ending[-1], AssistantMessage) and not ending[-1].tool_calls:
        ending.pop()
    if isinstance(ending[-1], AssistantMessage):
        # A call without a result must not be sent to the model again.
        answered = {message.call_id for message in ending if isinstance(message, ToolMessage)}
        if any(call.call_id not in answered for call in ending[-1].tool_calls):
            ending.pop()
    return (*ending, AssistantMessage(content=answer))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """The answer to one message.

    Attributes:
        session_id: The id of the session.
        turn: The number of the message in the session.
        text: The answer in Markdown.
        tables: The data below the text.
        channel: The format of the pages.
        pages: Text and tables in that format.
        success: Whether this is an answer rather than an excuse.
        stop_reason: How the work ended: `final_answer`, `no_tool_calls`, a limit, `question`, `started`, a fault.
        references: The resolved phrases of the message.
        tools: The names of the called tools, in order.
        proposed: Whether a task waits for the person's yes.
        execution_id: The execution of the task that this message started.
        repeated: Whether this is the answer that the same message got before.
        usage: The usage of the message.
    """

    session_id: str
    turn: int
    text: str
    channel: Channel
    pages: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    success: bool = True
    stop_reason: str = ""
    references: tuple[ResolvedPhrase, ...] = ()
    tools: tuple[str, ...] = ()
    proposed: bool = False
    execution_id: str = ""
    repeated: bool = False
    usage: Usage = field(default_factory=Usage)

    @classmethod
    def to(cls, session: ChatState, turn: ChatTurn, channel: Channel) -> ChatAnswer:
        """The answer to a message in the format of a channel; `session` is the state after it."""
        return cls(
            session_id=session.session_id,
            turn=turn.number,
            text=turn.answer,
            channel=channel,
            pages=pages(turn.answer, channel, turn.tables),
            tables=turn.tables,
            success=turn.success,
            stop_reason=turn.stop_reason,
            references=turn.references,
            tools=turn.tools,
            proposed=session.proposal is not None and session.proposal.turn == turn.number,
            execution_id=turn.execution_id,
        )
