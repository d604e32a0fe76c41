"""One part of a session as an agent run: up to a proposal, or from its approval to the end; and its first messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from swe_ai_fleet.agents.agent_run import AgentRun, Rules, RunParts
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.plan_session.proposals import (
    ProposalGate,
    Proposals,
    Proposed,
    has_effect,
    opens_with_proposal,
    proposed_among,
)
from swe_ai_fleet.agents.plan_session.session import PlanSession, Research
from swe_ai_fleet.agents.sub_agents.exploring import described
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults, MemorySearch
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentLimits, SubAgentTools
from swe_ai_fleet.agents.toolbox import REQUEST_TOOLS, Toolbox
from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.budget import Limits, Prices
from swe_ai_fleet.domain.message import AssistantMessage, Message, UserMessage
from swe_ai_fleet.domain.tool import OperationSpec, ToolResult
from swe_ai_fleet.domain.trajectory import Step, StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel, Workspace
from swe_ai_fleet.tools.builtin.dialogue import PROPOSE
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline

PLANNER_LIMITS = Limits(max_iterations=5, max_tool_calls=20, timeout_seconds=60.0)
"""Of one request: of a proposal, and again of what follows its approval."""
MAX_REMINDERS = 2
MAX_QUESTION_CHARS = 400
FINAL_PROMPT_SECONDS = 20.0
FAULTS = frozenset({StopReason.MODEL_ERROR, StopReason.CONTEXT_TOO_LONG, StopReason.MODEL_STOPPED})
"""After these the model has said nothing that counts."""
PROPOSE_NOW = "Nothing is done yet. Look further with a tool, or call propose_approach with what you would do."


def briefing(session: PlanSession) -> list[tuple[str, str]]:
    """Titled sections: the goal, what was selected, and as data what is known and what was found out."""
    research = session.research or Research()
    found = [research.summary, *(f"- {fact}" for fact in research.data_points)]
    found += [f"Source: {source}" for source in research.sources]
    if research.error:
        found.append(f"The research failed: {research.error}")
    return [
        ("Goal", session.goal),
        ("Selected entities", "\n".join(f"- {name}" for name in session.selected_entities)),
        ("What the project's memory says (data)", described(session.memory)),
        ("What was researched about the gaps (data)", "\n".join(filter(None, found))),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTools:
    """What a session works with; `toolkits` share the pipeline.

    `idle` names operations that the model is not shown until it asks for them, `unlisted` those of them that lack what
    they need here. `memory` is asked first; None: the repository's documents and history.
    """

    workspace: Workspace
    pipeline: Pipeline
    toolkits: Mapping[str, Toolkit] = field(default_factory=dict[str, Toolkit])
    idle: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    memory: MemorySearch | None = None


class PlanningRun:
    """The agent of a session for one request.

    Args:
        session: Where the session stands.
        model: The model that plans.
        tools: What it works with.
        limits: Of this request.
        sub_agents: Limits of the session's sub-agents, those of earlier requests included.
        prices: What the model costs.
    """

    def __init__(
        self,
        session: PlanSession,
        *,
        model: ChatModel,
        tools: PlanTools,
        limits: Limits,
        sub_agents: SubAgentLimits,
        prices: Prices | None = None,
    ) -> None:
        self._model = model
        self._tools = tools
        self._steps = session.steps
        limits = replace(limits, max_iterations=len(session.steps) + limits.max_iterations)
        self.budget = Budget(limits, prices=prices)
        self._kit = SubAgentTools(
            tools.workspace,
            tools.pipeline,
            model=model,
            budget=self.budget,
            toolkits=tools.toolkits,
            without=tools.unlisted,
            memory=tools.memory,
            limits=sub_agents,
            used=session.sub_agents,
        )
        self._kit.know(session.memory)
        self._own = Proposals(tools.workspace, tools.pipeline)
        self._toolkits = {**tools.toolkits, self._kit.name: self._kit, self._own.name: self._own}

    @property
    def sub_agents(self) -> int:
        """How many sub-agents the session had so far."""
        return self._kit.used

    @property
    def later(self) -> tuple[OperationSpec, ...]:
        """What the model will have once its approach is approved."""
        specs = self._specs()
        return tuple(spec for spec in specs if has_effect(spec) and spec.name not in self._tools.idle)

    async def recall(self, session: PlanSession) -> MemoryResults:
        """What memory knows about the selected entities, and what it says about the goal.

        Coverage and gaps are those of the entities: that a goal itself is new to memory is no gap.
        """
        question = " ".join(session.goal.split())[:MAX_QUESTION_CHARS]
        entities = list(session.selected_entities)
        result = await self._kit.search_memory(entities=entities, queries=[question])
        if not result.success:
            failed = MemoryResults(coverage=0.0, gaps=session.selected_entities, content=result.observation())
            self._kit.know(failed)
            return failed if entities else replace(failed, coverage=100.0)
        results = from_plain(MemoryResults, dict(result.metadata))
        gaps = tuple(gap for gap in results.gaps if gap in entities)
        coverage = round(100 * (len(entities) - len(gaps)) / len(entities), 1) if entities else 100.0
        return replace(results, coverage=coverage, gaps=gaps)

    async def research(self, gaps: Sequence[str]) -> Research | None:
        """What is found out about the gaps; None where there are none or nothing here reaches the web."""
        if not gaps or not self._kit.can_research:
            return None
        return _research(await self._kit.research(gaps=list(gaps)))

    async def propose(
        self, messages: Sequence[Message], *, adjustment: str = ""
    ) -> tuple[Trajectory, tuple[Message, ...], Proposed | None]:
        """Run up to a proposal: the trajectory, the whole conversation, and what is proposed if anything is.

        Args:
            messages: The conversation; a proposal in it that waits is answered with the adjustment.
            adjustment: What the person asks for instead.
        """
        harmless = frozenset(spec.name for spec in self._specs() if not has_effect(spec)) | {REQUEST_TOOLS}
        pipeline = self._tools.pipeline
        # Beside the gate: what is not in the policy runs under no spelling of its name.
        toolbox = self._toolbox(pipeline.under(replace(pipeline.policy, allowed=harmless)))
        history = History(messages)
        gate = ProposalGate(
            approved=False,
            understand=toolbox.understand,
            waiting=frozenset(call.call_id for call in history.unanswered()),
            adjustment=adjustment,
        )
        # A text ends the run, so that one which proposes something can be told from one which only talks.
        rules = Rules(max_reminders=0, answer_at_limit=True)
        trajectory = await self._run(toolbox, history, self._steps, gate, rules)
        for _ in range(MAX_REMINDERS):
            if trajectory.stop_reason is not StopReason.NO_TOOL_CALLS or opens_with_proposal(trajectory.answer):
                break
            history.add(UserMessage(content=PROPOSE_NOW))
            trajectory = await self._run(toolbox, history, trajectory.steps, gate, rules)
        return trajectory, _whole(history, trajectory), self._proposed(toolbox, history, trajectory)

    async def carry_out(self, messages: Sequence[Message]) -> tuple[Trajectory, tuple[Message, ...]]:
        """Run from the approval to the end, with every tool of the session."""
        toolbox = self._toolbox(self._tools.pipeline)
        history = History(messages)
        waiting = frozenset(call.call_id for call in history.unanswered())
        gate = ProposalGate(approved=True, understand=toolbox.understand, waiting=waiting)
        trajectory = await self._run(toolbox, history, self._steps, gate, Rules(max_reminders=1, answer_at_limit=True))
        return trajectory, _whole(history, trajectory)

    def after(self, session: PlanSession, trajectory: Trajectory, conversation: tuple[Message, ...]) -> PlanSession:
        """The session with what this request brought."""
        return replace(
            session,
            messages=conversation,
            steps=trajectory.steps,
            usage=session.usage + trajectory.usage,
            sub_agents=self.sub_agents,
            stop_reason=trajectory.stop_reason,
        )

    async def _run(
        self, toolbox: Toolbox, history: History, steps: Sequence[Step], gate: ProposalGate, rules: Rules
    ) -> Trajectory:
        parts = RunParts(
            model=self._model,
            toolbox=toolbox,
            history=history,
            budget=self.budget,
            rules=replace(rules, final_prompt_seconds=min(FINAL_PROMPT_SECONDS, self.budget.limits.timeout_seconds)),
            gate=gate,
            steps=steps,
        )
        return await AgentRun(parts).drive()

    def _toolbox(self, pipeline: Pipeline) -> Toolbox:
        idle = self._tools.idle - {PROPOSE}
        return Toolbox(self._toolkits, pipeline, idle=idle, unlisted=self._tools.unlisted)

    def _specs(self) -> list[OperationSpec]:
        policy = self._tools.pipeline.policy
        specs = [definition.spec for kit in self._toolkits.values() for definition in kit.definitions.values()]
        return [spec for spec in specs if policy.offers(spec)]

    def _proposed(self, toolbox: Toolbox, history: History, trajectory: Trajectory) -> Proposed | None:
        match trajectory.stop_reason:
            case StopReason.AWAITING_APPROVAL:
                return proposed_among([toolbox.understand(call) for call in history.unanswered()])
            case StopReason.NO_TOOL_CALLS | StopReason.FINAL_ANSWER:
                answer = trajectory.answer.strip()
                return Proposed(approach=answer) if answer else None
            case _:
                answer = _final_reply(trajectory).strip()
                return Proposed(approach=answer) if answer else None


def _final_reply(trajectory: Trajectory) -> str:
    """What the model said when a limit ended the run, which none of its steps has."""
    said = {step.reply.content for step in trajectory.steps}
    return "" if trajectory.answer in said or trajectory.stop_reason in FAULTS else trajectory.answer


def _whole(history: History, trajectory: Trajectory) -> tuple[Message, ...]:
    """The conversation, with the final reply that a run ended by a limit leaves out."""
    messages = tuple(history.messages)
    reply = _final_reply(trajectory)
    if reply and isinstance(messages[-1], UserMessage):
        return (*messages, AssistantMessage(content=reply))
    return messages


def _research(result: ToolResult) -> Research:
    if not result.success:
        return Research(error=result.error, summary=result.content)
    fields = {name: result.metadata.get(name) for name in ("summary", "sources", "data_points", "coverage")}
    return from_plain(Research, {name: value for name, value in fields.items() if value is not None})
