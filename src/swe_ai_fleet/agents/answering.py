"""Runs for the nodes of a workflow: a question answered by an agent, and a single tool call.

An agent answers a question with the tools that the node names, in a clone that is thrown away. A tool call goes through
the pipeline: validated, checked against the policy, audited, masked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.agent_run import RunParts
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.prompting import Fence
from swe_ai_fleet.agents.recorded_run import close_interrupted
from swe_ai_fleet.agents.run_deps import RunContext, RunDeps, RunEnding, RunRecorder
from swe_ai_fleet.agents.spec import AgentSpec, RunResources, run_agent
from swe_ai_fleet.agents.structured_output import opening
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentTools
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER, REQUEST_TOOLS, Toolbox, final_answer_in
from swe_ai_fleet.domain.assignment import Answer, AnswerAssignment, OperateAssignment
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Perspective
from swe_ai_fleet.domain.errors import InvalidRequest, ModelError
from swe_ai_fleet.domain.event import RunStarted, ToolFinished, ToolStarted
from swe_ai_fleet.domain.json_values import is_object, json_or_none, strings
from swe_ai_fleet.domain.message import Message
from swe_ai_fleet.domain.run import sub_agent_usage
from swe_ai_fleet.domain.task import ApprovalPolicy, Task
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel, Clone
from swe_ai_fleet.tools.catalogue import Toolset, open_toolkits
from swe_ai_fleet.tools.pipeline import MAX_NAME_CHARS, Pipeline
from swe_ai_fleet.tools.policy import Policy

MAX_BACKGROUND_CHARS = 12_000
_ANSWERED = frozenset({StopReason.FINAL_ANSWER, StopReason.NO_TOOL_CALLS})
_ASKING = frozenset({ApprovalPolicy.RISKY, ApprovalPolicy.EVERY})
MAX_RESULT_CHARS = 60_000
"""Characters of a tool's output that the next nodes get; a longer output is stored whole as an artifact."""


@dataclass(frozen=True, kw_only=True)
class AnswerRun:
    recorder: RunRecorder

    async def run(self, assignment: AnswerAssignment, clone: Clone) -> Answer:
        """An agent's answer; faults of the model, reached limits and missing tools are answers with an error."""
        return await self.recorder.run(assignment, clone, lambda run: _Answerer(assignment, clone, run).work())


class _Answerer(AgentSpec[Answer]):
    def __init__(self, assignment: AnswerAssignment, clone: Clone, run: RunContext) -> None:
        task, config = assignment.task, assignment.config
        limits = task.constraints.limits
        if config.max_iterations > 0:
            limits = replace(limits, max_iterations=min(config.max_iterations, limits.max_iterations))
        super().__init__(
            task=replace(task, tools=tuple(config.tools)),
            budget=Budget(limits, spent=run.earlier.usage),
            policy=Policy(role=task.role, read_only=True),
            perspective=Perspective(model_profile=config.model or next(iter(task.profiles), "")),
            environment=clone.environment.key,
        )
        self._assignment, self._clone, self._run = assignment, clone, run
        self._model = ""

    async def work(self) -> RunEnding[Answer]:
        try:
            answer = await run_agent(self, self._run)
        except (ModelError, InvalidRequest) as fault:
            answer = self._answer(StopReason.MODEL_ERROR, error=str(fault))
        return RunEnding(value=answer, stop_reason=answer.stop_reason, usage=answer.usage, error=answer.error)

    @asynccontextmanager
    async def tools(self, resources: RunResources) -> AsyncGenerator[Toolbox]:
        self._model, pipeline = resources.capabilities.model, resources.pipeline
        answer = final_answer_in(self._assignment.schema) if self._assignment.schema else FINAL_ANSWER
        if not self._assignment.config.use_tools:
            yield Toolbox({}, pipeline, answer=answer)
            return
        async with open_toolkits(self._clone, pipeline, self._run.deps.access, self.task) as toolset:
            if SubAgentTools.definitions.keys() & {*self.task.tools}:
                sub_agents = _sub_agents(
                    toolset, self._clone, pipeline, self.task, self._run.deps, resources.model, self.budget
                )
                toolset = replace(toolset, toolkits={**toolset.toolkits, sub_agents.name: sub_agents})
            yield _toolbox(toolset, pipeline, self.task, answer)

    async def opening(self, resources: RunResources, toolbox: Toolbox) -> tuple[Message, ...]:
        assignment, config, mask = self._assignment, self._assignment.config, self._run.deps.mask
        fence = Fence(mask, assignment.execution_id, assignment.agent_id)
        background = fence(assignment.background, MAX_BACKGROUND_CHARS)
        sections = [
            ("What is remembered, and may be wrong", background),
            ("Context", mask(assignment.task.context)),
            ("Question", mask(assignment.query)),
        ]
        return opening(
            "answer",
            sections,
            role=str(assignment.task.role),
            system_prompt=mask(config.system_prompt.strip()),
            tools=config.use_tools,
            mount=self._clone.mount,
            iterations=self.budget.limits.max_iterations,
            warning=fence.warning if background else "",
        )

    async def read(self, parts: RunParts, trajectory: Trajectory) -> Answer:
        """The agent's answer, with an error if it gave none."""
        mask, stop = self._run.deps.mask, trajectory.stop_reason
        text = mask(trajectory.answer).strip()
        error = "" if stop in _ANSWERED else trajectory.error or f"the run stopped: {stop}"
        tools = tuple(
            mask(well_formed(call.name))[:MAX_NAME_CHARS]
            for step in trajectory.steps
            for call in step.reply.tool_calls
            if call.name != FINAL_ANSWER.name
        )
        return self._answer(stop, text=text, tools=tools, error=error or ("" if text else "the agent gave no answer"))

    def _answer(self, stop: StopReason, *, text: str = "", tools: tuple[str, ...] = (), error: str) -> Answer:
        return Answer(
            text=text,
            stop_reason=stop,
            usage=self.budget.total(),
            model=self._model,
            audit_head=self._run.trail.head,
            tools=tools,
            error=error,
        )


def _sub_agents(
    toolset: Toolset,
    clone: Clone,
    pipeline: Pipeline,
    task: Task,
    deps: RunDeps,
    model: ChatModel,
    budget: Budget,
) -> SubAgentTools:
    return SubAgentTools(
        clone,
        pipeline,
        model=model,
        budget=budget,
        toolkits=toolset.toolkits,
        without=toolset.unlisted,
        memory=deps.memory_search(task, clone),
        limits=deps.sub_agents,
    )


def _toolbox(toolset: Toolset, pipeline: Pipeline, task: Task, answer: OperationSpec) -> Toolbox:
    """The tools that the node names and its task allows; if it names none, the read-only ones.

    If the node names `request_tools`, the agent may ask for the other read-only tools. Raises InvalidRequest for a
    missing tool.
    """
    specs = [definition.spec for kit in toolset.toolkits.values() for definition in kit.definitions.values()]
    names = {name for spec in specs for name in (spec.name, spec.tool)} | {REQUEST_TOOLS}
    if missing := [name for name in task.tools if name not in names]:
        raise InvalidRequest(f"there is no tool {missing[0][:64]!r} here", field="agent_config.tools")
    requested, permitted = frozenset(task.tools), frozenset(task.constraints.allowed_tools)
    named = frozenset(spec.name for spec in specs if {spec.name, spec.tool} & requested)
    asks = REQUEST_TOOLS in requested
    allowed = frozenset(
        spec.name
        for spec in specs
        if (not requested or spec.name in named or (asks and spec.read_only))
        and (not permitted or {spec.name, spec.tool} & permitted)
    )
    idle = toolset.idle | (allowed - named) if asks else toolset.idle
    policy = Policy(
        role=task.role,
        read_only=not requested or not task.enable_tools or task.approval in _ASKING,
        # An empty set would allow everything.
        allowed=(allowed | {REQUEST_TOOLS} if asks else allowed) or frozenset({"none"}),
        denied=frozenset(task.constraints.denied_tools),
        allowed_paths=task.constraints.allowed_paths,
    )
    return Toolbox(toolset.toolkits, pipeline.under(policy), idle=idle, unlisted=toolset.unlisted, answer=answer)


@dataclass(frozen=True, kw_only=True)
class OperateRun:
    recorder: RunRecorder

    async def run(self, assignment: OperateAssignment, clone: Clone) -> ToolResult:
        """The result of one call; a failing or missing tool gives a result with an error.

        A call with side effects that began in an earlier process and never ended is not repeated: its outcome is
        `interrupted`. Raises as `RunRecorder.run` does.
        """
        return await self.recorder.run(assignment, clone, lambda run: self._work(assignment, clone, run))

    async def _work(self, assignment: OperateAssignment, clone: Clone, run: RunContext) -> RunEnding[ToolResult]:
        run.trail.entries.extend(run.earlier.entries)
        result = await self._earlier_result(assignment, run) if assignment.resumes else None
        if run.earlier.started is None:
            run.begin(RunStarted(role=assignment.task.role, model="", messages=(), tools=(assignment.tool,)))
        if result is None:
            result = await self._call(assignment, clone, run)
        stop = StopReason.FINAL_ANSWER if result.success else StopReason.TOOL_ERROR
        usage = Usage(tool_calls=1) + sub_agent_usage(result)
        return RunEnding(value=result, stop_reason=stop, usage=usage, error=result.error)

    async def _earlier_result(self, assignment: OperateAssignment, run: RunContext) -> ToolResult | None:
        begun: AuditEntry | None = None
        events = self.recorder.log.read(assignment.task.tenant, assignment.execution_id, agent_id=assignment.agent_id)
        async with aclosing(events):
            async for stored in events:
                match stored.event.body:
                    case ToolStarted(entry=entry):
                        begun = entry
                    case ToolFinished(entry=entry, result=result) if entry.outcome is not Outcome.CANCELLED:
                        return result
                    case _:
                        pass
        if begun is None or run.journal is None:
            return None
        return close_interrupted(begun, run.trail, run.journal)

    async def _call(self, assignment: OperateAssignment, clone: Clone, run: RunContext) -> ToolResult:
        deps, task = run.deps, assignment.task
        policy = Policy(
            role=task.role,
            read_only=not task.enable_tools,
            allowed=frozenset(task.constraints.allowed_tools),
            denied=frozenset(task.constraints.denied_tools),
            allowed_paths=task.constraints.allowed_paths,
        )
        pipeline = run.pipeline(task, policy, task.constraints.limits, chars=MAX_RESULT_CHARS)
        async with open_toolkits(clone, pipeline, deps.access, task) as toolset:
            arguments = json_or_none(assignment.arguments or "{}")
            if not is_object(arguments):
                return _refused(assignment, pipeline, "the arguments are not a JSON object")
            kits = toolset.toolkits
            if assignment.tool in SubAgentTools.definitions:
                model, budget = deps.model(task, Perspective(), run.trail), Budget(task.constraints.limits)
                sub_agents = _sub_agents(toolset, clone, pipeline, task, deps, model, budget)
                # Nothing was searched in memory before: the gaps are those that the node names.
                sub_agents.know(MemoryResults(gaps=tuple(strings(arguments.get("gaps")))))
                kits = {**kits, sub_agents.name: sub_agents}
            for kit in kits.values():
                for definition in kit.definitions.values():
                    if definition.spec.name == assignment.tool:
                        return await pipeline.call(definition, kit, arguments)
            return _refused(assignment, pipeline, f"there is no tool {assignment.tool[:64]!r} here")


def _refused(assignment: OperateAssignment, pipeline: Pipeline, error: str) -> ToolResult:
    """An audited refusal of a call that names no tool, or has unusable arguments."""
    name = assignment.tool[:64]
    spec = OperationSpec(name=name, tool="unknown", operation=name, description="", parameters={}, read_only=True)
    record = pipeline.trail.open(spec, arguments={}, secret={"raw": assignment.arguments}, call_id="")
    return record.close(ToolResult(success=False, operation=name, error=error, outcome=Outcome.INVALID), reason=error)
