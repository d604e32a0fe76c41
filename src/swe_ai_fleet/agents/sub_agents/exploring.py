"""A sub-agent that explores with read-only operations before it answers, and the results of sub-agents.

A result has a text for the calling agent, and fields and a trace for programs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from swe_ai_fleet.agents.agent_run import AgentRun, Rules, RunParts
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.structured_output import (
    OutputShape,
    ResearchShape,
    Shape,
    VerdictShape,
    read,
    reply_in_shape,
    schema_of,
)
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER, Toolbox, final_answer_in
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.json_values import is_mapping, mappings, parse_json
from swe_ai_fleet.domain.message import Message, UserMessage
from swe_ai_fleet.domain.run import SUB_AGENT
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import Step, StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline

S = TypeVar("S", bound=Shape)
MAX_FINAL_PROMPT_SECONDS = 20.0
_CONCLUDE = "Put what you found into the JSON object that was asked for: answer with it and nothing else. Add nothing."
SPENT = frozenset({StopReason.MAX_TOKENS, StopReason.MAX_COST, StopReason.TIMEOUT, StopReason.MODEL_ERROR})
"""After these stop reasons, the model cannot be asked for another reply."""
_MAX_CALLS_SHOWN = 20
SUB_AGENTS = ("research", "call_planner", "call_verifier", "call_executor", "call_generator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored(Generic[S]):
    """The trajectory and the conclusion of a sub-agent; None if its final reply has no usable form."""

    trajectory: Trajectory
    conclusion: S | None

    @property
    def answer(self) -> str:
        return self.trajectory.answer.strip()


def offered(
    toolkits: Mapping[str, Toolkit], pipeline: Pipeline, names: Collection[str], *, read_only: bool = True
) -> tuple[str, ...]:
    """The named operations that exist and the run's policy allows; only those without side effects if `read_only`."""
    specs = [definition.spec for kit in toolkits.values() for definition in kit.definitions.values()]
    allowed = {
        spec.name
        for spec in specs
        if pipeline.policy.offers(spec) and (not read_only or (spec.read_only and not spec.executes))
    }
    return tuple(name for name in names if name in allowed)


async def explore(
    model: ChatModel,
    opening: Sequence[Message],
    shape: type[S],
    *,
    toolkits: Mapping[str, Toolkit],
    pipeline: Pipeline,
    names: Collection[str],
    budget: Budget,
) -> Explored[S]:
    """Have a sub-agent explore and conclude.

    It can call exactly `names`; other calls are refused and audited like any. A reply without a call, `final_answer`, a
    limit or a fault of the model ends it. Raises ToolFailure if a fault of the model ends it before its first step.
    """
    if not names:
        raise ValueError("a sub-agent that explores needs operations to explore with")
    narrow = pipeline.under(replace(pipeline.policy, allowed=frozenset(names)))
    history = History(opening)
    seconds = min(MAX_FINAL_PROMPT_SECONDS, budget.limits.timeout_seconds / 4)
    parts = RunParts(
        model=model,
        toolbox=Toolbox(toolkits, narrow, answer=final_answer_in(schema_of(shape))),
        history=history,
        budget=budget,
        rules=Rules(max_reminders=0, max_tool_errors=6, answer_at_limit=True, final_prompt_seconds=seconds),
    )
    trajectory = await AgentRun(parts).drive()
    if trajectory.stop_reason is StopReason.MODEL_ERROR and not trajectory.steps:
        raise ToolFailure(f"the model of the sub-agent gave no answer: {trajectory.error}")
    try:
        return Explored(trajectory=trajectory, conclusion=read(shape, *answers_in(trajectory)))
    except ValueError:
        if trajectory.stop_reason in SPENT or not (trajectory.answer or trajectory.steps):
            return Explored(trajectory=trajectory, conclusion=None)
    try:
        messages = [*history.messages, UserMessage(content=f"{trajectory.answer}\n\n{_CONCLUDE}".strip())]
        conclusion = await reply_in_shape(model, messages, shape, budget=budget)
    except ToolFailure:
        conclusion = None
    return Explored(trajectory=trajectory, conclusion=conclusion)


def answers_in(trajectory: Trajectory) -> list[object]:
    """The texts that may have the conclusion: the arguments of the last reply's final answer, and the answer itself."""
    last = trajectory.steps[-1].reply.tool_calls if trajectory.steps else ()
    return [*(call.arguments for call in last if call.name == FINAL_ANSWER.name), trajectory.answer]


def described(results: MemoryResults) -> str:
    lines = ["Coverage: unknown." if results.coverage is None else f"Coverage: {results.coverage:g} %."]
    if results.gaps:
        lines.append(f"Gaps: {'; '.join(results.gaps)}")
    return "\n".join(lines) + (f"\n\n{results.content}" if results.content else "")


def key_of(gap: str) -> str:
    return " ".join(gap.split()).casefold()


def listed(steps: Sequence[str], note: str) -> str:
    lines = [f"{number}. {step}" for number, step in enumerate(steps, start=1)]
    return "\n".join([*lines, *(["", note] if note else [])])


def format_check(name: str) -> Callable[[OutputShape], str]:
    """A function that returns the problem of an output in this format; empty for formats other than JSON."""

    def check(answer: OutputShape) -> str:
        try:
            parse_json(answer.output)
        except ValueError as error:
            return f"its output is not JSON: {error}"
        return ""

    return check if name.strip().lower() in {"json", "application/json"} else lambda answer: ""


def trace_metadata(name: str, trajectory: Trajectory) -> Mapping[str, object]:
    calls = [
        {"tool": call.name[:64], "arguments": call.arguments[:200], "outcome": str(observation.result.outcome)}
        for step in trajectory.steps
        for call, observation in zip(step.reply.tool_calls, step.observations, strict=False)
    ]
    return {
        "name": name,
        "stop_reason": str(trajectory.stop_reason),
        "iterations": len(trajectory.steps),
        "usage": to_plain(trajectory.usage),
        "calls": calls[:_MAX_CALLS_SHOWN],
        "error": trajectory.error[:500],
    }


def sub_agents_used(steps: Sequence[Step]) -> int:
    """How many sub-agents the steps of a run started, including those of sub-agents."""
    return sum(sub_agents_of(observation.result) for step in steps for observation in step.observations)


def sub_agents_of(result: ToolResult) -> int:
    """How many sub-agents contributed to a result, including those of its sub-agent."""
    if not is_mapping(trace := result.metadata.get(SUB_AGENT)):
        return 0
    calls = mappings(trace.get("calls"))
    return 1 + sum(call.get("tool") in SUB_AGENTS and call.get("outcome") == Outcome.SUCCESS for call in calls)


def result(name: str, content: str, fields: Mapping[str, object], trace: Mapping[str, object]) -> ToolResult:
    return ToolResult(success=True, operation=name, content=content, metadata={**fields, SUB_AGENT: trace})


def verdict(judged: VerdictShape, trace: Mapping[str, object]) -> ToolResult:
    """A verdict on a plan; the call succeeds even if the plan is bad."""
    text = f"{'Feasible' if judged.is_feasible else 'Not feasible'}.\n{judged.feedback}"
    return result("call_verifier", text, judged.model_dump(), trace)


def unfinished(name: str, trajectory: Trajectory, trace: Mapping[str, object]) -> ToolResult:
    """The failed result of a sub-agent without a usable conclusion."""
    outcome = Outcome.TIMEOUT if trajectory.stop_reason is StopReason.TIMEOUT else Outcome.ERROR
    reason = trajectory.error or f"its answer has no usable form ({trajectory.stop_reason})"
    return ToolResult(
        success=False,
        operation=name,
        error=f"the sub-agent came to no conclusion: {reason}",
        content=trajectory.answer,
        metadata={SUB_AGENT: trace},
        outcome=outcome,
    )


def researched(gaps: Sequence[str], explored: Explored[ResearchShape]) -> ToolResult:
    """The result of research. Only pages that were read count as sources; without sources, no gap is covered."""
    trace = trace_metadata("research", explored.trajectory)
    sources = _sources(explored.trajectory)
    if explored.conclusion is None and not (sources and explored.answer):
        return unfinished("research", explored.trajectory, trace)
    conclusion = explored.conclusion or ResearchShape(summary=explored.answer, answers=[], data_points=[])
    answers = {key_of(answer.gap): answer.answer for answer in conclusion.answers if answer.answer}
    closed = [gap for gap in gaps if sources and answers.get(key_of(gap))]
    coverage = round(100 * len(closed) / len(gaps), 1)
    lines = [conclusion.summary, ""]
    lines += [f"{gap}: {answers.get(key_of(gap)) or 'nothing was found'}" for gap in gaps] if conclusion.answers else []
    lines += [f"- {fact}" for fact in conclusion.data_points]
    lines += ["", f"Coverage of the gaps: {coverage:g} %.", *(f"Source: {source}" for source in sources)]
    fields: dict[str, object] = {
        "summary": conclusion.summary,
        "sources": sources,
        "data_points": conclusion.data_points,
        "coverage": coverage,
        "open": [gap for gap in gaps if gap not in closed],
    }
    return result("research", "\n".join(lines).strip(), fields, trace)


def _sources(trajectory: Trajectory) -> list[str]:
    urls: dict[str, None] = {}
    for step in trajectory.steps:
        for observation in step.observations:
            if not observation.result.success:
                continue
            metadata = observation.result.metadata
            for entry in (metadata, *mappings(metadata.get("results"))):
                url = entry.get("url")
                if isinstance(url, str) and url:
                    urls.setdefault(url)
    return list(urls)
