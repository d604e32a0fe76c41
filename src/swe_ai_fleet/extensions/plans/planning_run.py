"""One request of a plan session as an agent run: up to a proposal, or from its approval to the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.agent_run import LIMITS, REMINDER, AgentRun, Rules, RunParts, answer_of
from swe_ai_fleet.agents.approvals import opens_with_proposal
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.recorded_run import RecordedRun, run_finished
from swe_ai_fleet.agents.structured_output import opening, reply_in_shape
from swe_ai_fleet.agents.sub_agents.exploring import described, sub_agents_used
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentLimits, SubAgentTools
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER, REQUEST_TOOLS, Toolbox
from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.budget import Limits, Prices, Usage
from swe_ai_fleet.domain.event import MessageAdded, RunStarted
from swe_ai_fleet.domain.message import AssistantMessage, Message, ToolMessage, UserMessage
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.tool import OperationSpec, ToolResult
from swe_ai_fleet.domain.trajectory import Step, StopReason, Trajectory
from swe_ai_fleet.extensions.plans.proposals import (
    ADJUSTED,
    ANSWERED,
    APPROVED,
    PROPOSE_NOW,
    ProposalGate,
    Proposals,
    Proposed,
    SaidShape,
    has_call_markup,
    has_effect,
    proposed_among,
)
from swe_ai_fleet.extensions.plans.session import PlanSession, PlanTools, Research
from swe_ai_fleet.ports import ChatModel, SecretMask
from swe_ai_fleet.tools.builtin import PROPOSE
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.pipeline import Pipeline

ROLE = "planner"
MAX_REMINDERS = 2
MAX_QUESTION_CHARS = 400
FAULTS = frozenset({StopReason.MODEL_ERROR, StopReason.CONTEXT_TOO_LONG, StopReason.MODEL_STOPPED})
"""The stop reasons of runs whose model gave no usable reply."""


def briefing(session: PlanSession) -> list[tuple[str, str]]:
    """The sections of the first message: goal, selected entities, and as data the results of memory and research."""
    research = session.research or Research()
    lines = [research.summary, *(f"- {fact}" for fact in research.data_points)]
    lines += [f"Source: {source}" for source in research.sources]
    if research.error:
        lines.append(f"The research failed: {research.error}")
    return [
        ("Goal", session.goal),
        ("Selected entities", "\n".join(f"- {name}" for name in session.selected_entities)),
        ("What the project's memory says (data)", described(session.memory)),
        ("What was researched about the gaps (data)", "\n".join(filter(None, lines))),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    session: PlanSession
    answer: str
    error: str
    proposed: Proposed | None = None


class PlanningRun:
    """The recorded run of the planner for one request; it continues from where an earlier process stopped.

    `sub_agents` limits all sub-agents of the session, those of earlier requests too; the same model plays them.
    """

    def __init__(
        self,
        session: PlanSession,
        record: RecordedRun,
        earlier: RunState,
        *,
        model: ChatModel,
        tools: PlanTools,
        limits: Limits,
        sub_agents: SubAgentLimits,
        mask: SecretMask,
        prices: Prices | None = None,
    ) -> None:
        self._model, self._tools, self._limits, self._mask = model, tools, limits, mask
        self._journal, self._trail = record.journal, record.trail
        self._earlier = earlier
        self._session = session.with_run(earlier)
        self._pipeline = tools.pipeline.under(tools.pipeline.policy, trail=record.trail)
        session_limits = replace(limits, max_iterations=len(session.steps) + limits.max_iterations)
        self._budget = Budget(session_limits, prices=prices, spent=Usage(duration_ms=earlier.usage.duration_ms))
        self._budget.settle(replace(earlier.usage, duration_ms=0))
        self._sub_agents = SubAgentTools(
            tools.workspace,
            self._pipeline,
            model=model,
            budget=self._budget,
            toolkits=tools.toolkits,
            without=tools.unlisted,
            memory=tools.memory,
            limits=sub_agents,
            used=session.sub_agents + sub_agents_used(earlier.steps),
        )
        self._sub_agents.know(session.memory)
        own = Proposals(tools.workspace, self._pipeline)
        self._toolkits = {**tools.toolkits, self._sub_agents.name: self._sub_agents, own.name: own}
        self._examined_texts: dict[str, Proposed | None] = {}

    async def plan(self, results: Mapping[str, ToolResult]) -> RunEnd:
        """Ask memory about the goal, research its gaps, and run up to a proposal.

        `results` are, by operation, the results that an earlier process of this run already has from both.
        """
        session, toolbox = self._session, self._toolbox_before_approval()
        history = self._history(toolbox, session.messages or self._first_messages(())[:1])
        session = replace(session, memory=await self._recall(results.get("search_memory")))
        session = replace(session, research=await self._research(session.memory.gaps, results.get("research")))
        started = self._earlier.started
        if started is None or len(self._earlier.messages) == len(started.messages):
            self._add(history, self._first_messages(briefing(session))[-1])
        return await self._propose(session, toolbox, history, frozenset())

    async def adjust(self) -> RunEnd:
        """Answer the pending proposal or question with the text of the person, and run up to the next one."""
        session, toolbox, messages = self._session, self._toolbox_before_approval(), self._session.messages
        if not session.waits:
            messages = (*messages, UserMessage(content=_person_said(session)))
        history = self._history(toolbox, messages)
        return await self._propose(session, toolbox, history, self._waiting(messages))

    async def run(self) -> RunEnd:
        """Run from the approval to the end, with every tool of the session."""
        session, toolbox = self._session, self._toolbox(self._pipeline)
        messages = session.messages
        if not session.waits:
            messages = (*messages, UserMessage(content=APPROVED))
        history = self._history(toolbox, messages)
        gate = ProposalGate(approved=True, toolbox=toolbox, examine=self._examined, waiting=self._waiting(messages))
        rules = Rules(max_reminders=1, answer_at_limit=True)
        begun = len(self._earlier.started.messages if self._earlier.started else messages) - 1

        async def approval() -> str:
            """The note on the approval, unless an earlier process has added it to the conversation."""
            return "" if any(APPROVED in message.content for message in history.messages[begun:]) else APPROVED

        trajectory = self._concluded(history)
        if trajectory is None:
            trajectory = await self._run(toolbox, history, session.steps, gate, rules, approval)
        return await self._ended(session, trajectory, history)

    async def _propose(
        self, session: PlanSession, toolbox: Toolbox, history: History, waiting: frozenset[str]
    ) -> RunEnd:
        """Run up to a proposal; `waiting` are the ids of the calls that the person's text answers."""
        gate = ProposalGate(
            approved=False, toolbox=toolbox, examine=self._examined, waiting=waiting, answer=_person_said(session)
        )
        # A text ends the run; then it is examined whether the text is a proposal.
        rules = Rules(max_reminders=0, answer_at_limit=True)
        reminders, trajectory = 0, self._concluded(history)
        if trajectory is None:
            trajectory = await self._run(toolbox, history, session.steps, gate, rules)
            reminded = sum(message == UserMessage(content=PROPOSE_NOW) for message in self._earlier.messages)
            reminders = MAX_REMINDERS - reminded
        while True:
            proposed = await self._proposed(toolbox, history, trajectory, last=reminders <= 0)
            if proposed is not None or reminders <= 0 or trajectory.stop_reason is not StopReason.NO_TOOL_CALLS:
                break
            reminders -= 1
            self._add(history, UserMessage(content=PROPOSE_NOW))
            trajectory = await self._run(toolbox, history, trajectory.steps, gate, rules)
        return await self._ended(session, replace(trajectory, usage=self._budget.total()), history, proposed)

    async def _proposed(
        self, toolbox: Toolbox, history: History, trajectory: Trajectory, *, last: bool
    ) -> Proposed | None:
        """The proposal or question of a run; a text that opens like neither is examined only if it is the `last`."""
        match trajectory.stop_reason:
            case StopReason.AWAITING_APPROVAL:
                proposed = proposed_among([toolbox.understand(call) for call in history.unanswered()])
                return await self._examined(proposed.approach) if proposed and proposed.said else proposed
            case StopReason.NO_TOOL_CALLS | StopReason.FINAL_ANSWER:
                text = trajectory.answer
                return await self._examined(text) if last or "?" in text or opens_with_proposal(text) else None
            case _:
                return await self._examined(_final_reply(trajectory))

    async def _examined(self, text: str) -> Proposed | None:
        """The proposal or question in a text: a separate model call decides, or its opening words if the call fails."""
        text = text.strip()
        if not text or has_call_markup(text):
            return None
        if text not in self._examined_texts:
            messages = opening(
                "plans/second_look", [("Goal", self._session.goal), ("What the agent wrote (data)", text)]
            )
            try:
                reading = await reply_in_shape(self._model, messages, SaidShape, budget=self._budget)
                self._examined_texts[text] = reading.read(text)
            except ToolFailure:
                self._examined_texts[text] = Proposed(approach=text) if opens_with_proposal(text) else None
        return self._examined_texts[text]

    async def _ended(
        self, session: PlanSession, trajectory: Trajectory, history: History, proposed: Proposed | None = None
    ) -> RunEnd:
        stop, answer, error = trajectory.stop_reason, self._mask(trajectory.answer), self._mask(trajectory.error)
        if self._earlier.trajectory is None:
            await self._journal.append(run_finished(self._trail, stop, trajectory.usage, answer=answer, error=error))
        session = replace(
            session,
            messages=_conversation(history, trajectory),
            steps=trajectory.steps,
            usage=session.usage + trajectory.usage,
            sub_agents=self._sub_agents.used,
            stop_reason=stop,
            adjustment="",
            question="",
        )
        return RunEnd(session=session, answer=answer, error=error, proposed=proposed)

    async def _recall(self, earlier: ToolResult | None) -> MemoryResults:
        """The memories of the selected entities and of the goal; `earlier` is the result of an earlier process.

        Coverage and gaps count entities only: a goal that is new to memory is no gap. Without entities coverage is
        None.
        """
        question = " ".join(self._session.goal.split())[:MAX_QUESTION_CHARS]
        entities = list(self._session.selected_entities)
        result = earlier or await self._sub_agents.search_memory(entities=entities, queries=[question])
        if not result.success:
            failed = MemoryResults(coverage=0.0, gaps=tuple(entities), content=result.observation())
            self._sub_agents.know(failed)
            return failed if entities else replace(failed, coverage=None)
        results = from_plain(MemoryResults, dict(result.metadata))
        self._sub_agents.know(results)
        gaps = tuple(gap for gap in results.gaps if gap in entities)
        coverage = round(100 * (len(entities) - len(gaps)) / len(entities), 1) if entities else None
        return replace(results, coverage=coverage, gaps=gaps)

    async def _research(self, gaps: Sequence[str], earlier: ToolResult | None) -> Research | None:
        """The research about the gaps; None without gaps, or without a tool that reaches the web."""
        if not gaps or not self._sub_agents.can_research:
            return None
        if earlier is not None:
            self._sub_agents.settle(earlier)
        result = earlier or await self._sub_agents.research(gaps=list(gaps))
        if not result.success:
            return Research(error=result.error, summary=result.content)
        fields = {name: result.metadata.get(name) for name in ("summary", "sources", "data_points", "coverage")}
        return from_plain(Research, {name: value for name, value in fields.items() if value is not None})

    def _history(self, toolbox: Toolbox, messages: Sequence[Message]) -> History:
        """The conversation: started with these messages, or as an earlier process left it."""
        if self._earlier.started is not None:
            return History(self._earlier.messages)
        names = tuple(spec.name for spec in toolbox.specs)
        self._journal.post(RunStarted(role=ROLE, model="", messages=tuple(messages), tools=names))
        return History(messages)

    def _waiting(self, messages: Sequence[Message]) -> frozenset[str]:
        """The ids of the calls that had waited for the decision when the run began."""
        started = self._earlier.started
        return frozenset(call.call_id for call in History(started.messages if started else messages).unanswered())

    def _add(self, history: History, message: Message) -> None:
        history.add(message)
        self._journal.post(MessageAdded(step=len(self._session.steps) + 1, message=message))

    def _concluded(self, history: History) -> Trajectory | None:
        trajectory, steps = self._earlier.trajectory, self._session.steps
        if trajectory is None:
            return None
        stop, messages = trajectory.stop_reason, history.messages
        if stop in LIMITS and isinstance(messages[-1], AssistantMessage) and not messages[-1].tool_calls:
            # The reply to the final prompt is not a step.
            steps = steps[:-1]
        if stop is not StopReason.AWAITING_APPROVAL:
            for call in history.unanswered():
                history.add(ToolMessage(call_id=call.call_id, content=f"Error: not finished: {stop}"))
        return replace(trajectory, steps=steps)

    async def _run(
        self,
        toolbox: Toolbox,
        history: History,
        steps: Sequence[Step],
        gate: ProposalGate,
        rules: Rules,
        news: Callable[[], Awaitable[str]] | None = None,
    ) -> Trajectory:
        if (stop := self._stop_reached(history, rules)) is not None:
            return Trajectory(
                steps=tuple(steps), stop_reason=stop, answer=answer_of(list(steps)), usage=self._budget.total()
            )
        parts = RunParts(
            model=self._model,
            toolbox=toolbox,
            history=history,
            budget=self._budget,
            rules=rules,
            journal=self._journal,
            gate=gate,
            steps=steps,
            news=news,
        )
        return await AgentRun(parts).drive()

    def _stop_reached(self, history: History, rules: Rules) -> StopReason | None:
        """The stop reason that follows from the last reply of an earlier process; None if the run continues."""
        if not self._earlier.steps or len(history.messages) > len(self._earlier.messages):
            return None
        *_, before, last = history.messages
        results = [observation.result for observation in self._earlier.steps[-1].observations]
        if isinstance(last, ToolMessage) and any(
            result.operation == FINAL_ANSWER.name and result.success for result in results
        ):
            return StopReason.FINAL_ANSWER
        if not isinstance(last, AssistantMessage) or last.tool_calls:
            return None
        if not rules.max_reminders or before == UserMessage(content=REMINDER):
            return StopReason.NO_TOOL_CALLS
        self._add(history, UserMessage(content=REMINDER))
        return None

    def _first_messages(self, sections: Sequence[tuple[str, str]]) -> tuple[Message, ...]:
        """The first messages about a goal; only the last one depends on the sections."""
        # The operations that the model gets with the approval.
        later = [spec.name for spec in self._specs() if has_effect(spec) and spec.name not in self._tools.idle]
        return opening("plans/session", sections, iterations=self._limits.max_iterations, later=later)

    def _toolbox_before_approval(self) -> Toolbox:
        without_effect = frozenset(spec.name for spec in self._specs() if not has_effect(spec)) | {REQUEST_TOOLS}
        # In addition to the gate: a policy refuses an operation under every spelling of its name.
        return self._toolbox(self._pipeline.under(replace(self._pipeline.policy, allowed=without_effect)))

    def _toolbox(self, pipeline: Pipeline) -> Toolbox:
        idle = self._tools.idle - {PROPOSE}
        return Toolbox(self._toolkits, pipeline, idle=idle, unlisted=self._tools.unlisted)

    def _specs(self) -> list[OperationSpec]:
        specs = [definition.spec for kit in self._toolkits.values() for definition in kit.definitions.values()]
        return [spec for spec in specs if self._pipeline.policy.offers(spec)]


def _person_said(session: PlanSession) -> str:
    return (ANSWERED if session.question else ADJUSTED).format(text=session.adjustment)


def _final_reply(trajectory: Trajectory) -> str:
    """The model's last text after a limit ended the run, which is in none of the steps."""
    contents = {step.reply.content for step in trajectory.steps}
    return "" if trajectory.answer in contents or trajectory.stop_reason in FAULTS else trajectory.answer


def _conversation(history: History, trajectory: Trajectory) -> tuple[Message, ...]:
    """The conversation, with the final reply that a run ended by a limit leaves out."""
    messages = tuple(history.messages)
    reply = _final_reply(trajectory)
    if reply and isinstance(messages[-1], UserMessage):
        return (*messages, AssistantMessage(content=reply))
    return messages
