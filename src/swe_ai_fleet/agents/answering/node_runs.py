"""Runs for the nodes of a workflow: a question answered by an agent, and a single call of a tool.

A question takes the one loop with the tools that the node names, in a clone that is thrown away. A tool call goes the
way of every call: validated, held to policy, audited, masked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from typing import cast

from swe_ai_fleet.agents.agent_run import AgentRun, Rules, RunParts
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.loop_guard import LoopGuard
from swe_ai_fleet.agents.prompting import Fence
from swe_ai_fleet.agents.recorded_run import (
    RecordedRun,
    RunServices,
    WorkspaceKeeper,
    close_interrupted,
    concluded,
    read_run,
    resume,
)
from swe_ai_fleet.agents.sub_agents.structured_output import opening
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER, Toolbox, final_answer_in
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.assignment import Answer, AnswerAssignment, OperateAssignment
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Limits, Usage
from swe_ai_fleet.domain.candidate import Artifacts, Perspective
from swe_ai_fleet.domain.command import Owner
from swe_ai_fleet.domain.errors import InvalidRequest, ModelError
from swe_ai_fleet.domain.event import RunFinished, RunStarted, ToolFinished, ToolStarted
from swe_ai_fleet.domain.message import Message
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.task import ApprovalPolicy, Task
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import Clone, SecretMask
from swe_ai_fleet.tools.catalogue import Toolset, open_toolkits
from swe_ai_fleet.tools.definition import Definition
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import MAX_NAME_CHARS, Pipeline, ToolLimits
from swe_ai_fleet.tools.policy import Policy

MAX_BACKGROUND_CHARS = 12_000
_ANSWERED = frozenset({StopReason.FINAL_ANSWER, StopReason.NO_TOOL_CALLS})
_ASKING = frozenset({ApprovalPolicy.RISKY, ApprovalPolicy.EVERY})
MAX_RESULT_CHARS = 60_000
"""So much of a tool's output goes on to the next nodes; the whole of a longer one is kept as an artifact."""


def answer_messages(
    assignment: AnswerAssignment, *, mount: str, iterations: int, mask: SecretMask
) -> tuple[Message, ...]:
    """The first messages of an answering run.

    Args:
        assignment: Who is asked what.
        mount: Where the agent's tools see the repository.
        iterations: How many turns it has.
        mask: Hides secrets.
    """
    config, task = assignment.config, assignment.task
    fence = Fence(mask, assignment.execution_id, assignment.agent_id)
    background = fence(assignment.background, MAX_BACKGROUND_CHARS)
    sections = [
        ("What is remembered, and may be wrong", background),
        ("Context", mask(task.context)),
        ("Question", mask(assignment.query)),
    ]
    return opening(
        "answer",
        sections,
        role=str(task.role),
        system_prompt=mask(config.system_prompt.strip()),
        tools=config.use_tools,
        mount=mount,
        iterations=iterations,
        warning=fence.warning if background else "",
    )


@dataclass(frozen=True, kw_only=True)
class AnswerRun:
    """Carries out `AnswerAssignment`s, each recorded like every run."""

    services: RunServices

    async def carry_out(self, assignment: AnswerAssignment, clone: Clone) -> Answer:
        """An agent's answer; faults of the model, spent limits and tools that are not there are answers with an error.

        A run that an earlier process began goes on where its log leaves off; one that had ended is handed in again.

        Raises Fenced, Unavailable; a cancellation passes after it was recorded.
        """
        task, resumes = assignment.task, assignment.generation > 1
        async with self.services.recorded(assignment, resumes=resumes) as run:
            await run.journal.flush()
            earlier, keeper = RunState(agent_id=assignment.agent_id), self._keeper(assignment, clone, run)
            if resumes:
                earlier = await read_run(self.services.log, task.tenant, assignment.execution_id, assignment.agent_id)
                if (known := concluded(earlier, Answer)) is not None:
                    return known
                earlier = await resume(earlier, keeper, self.services.blobs)
            answer = await self._answered(assignment, clone, run, earlier)
            finished = RunFinished(
                stop_reason=answer.stop_reason,
                artifacts=Artifacts(),
                usage=answer.usage,
                audit_head=answer.audit_head,
                answer=to_json(answer).decode(),
                error=answer.error,
            )
            await run.journal.append(finished)
            if answer.stop_reason is not StopReason.CANCELLED:
                await keeper.release()
            return answer

    def _keeper(self, assignment: AnswerAssignment, clone: Clone, run: RecordedRun) -> WorkspaceKeeper:
        return WorkspaceKeeper(
            clone=clone,
            journal=run.journal,
            blobs=self.services.blobs,
            owner=Owner(tenant=assignment.task.tenant, execution_id=assignment.execution_id),
            trail=run.trail,
        )

    async def _answered(
        self, assignment: AnswerAssignment, clone: Clone, run: RecordedRun, earlier: RunState
    ) -> Answer:
        """Ask, and let the agent look around until it answers."""
        equipment = self.services.equipment
        task = replace(assignment.task, tools=tuple(assignment.config.tools))
        limits = _limits(task.constraints.limits, assignment)
        budget = Budget(limits, spent=earlier.usage)
        model_name = ""
        try:
            model = equipment.model(task, Perspective(model_profile=_profile(assignment)), run.trail)
            capabilities = await model.probe()
            model_name = capabilities.model
            budget = Budget(limits, prices=equipment.price(model_name), spent=earlier.usage)
            pipeline = Pipeline(
                trail=run.trail,
                policy=Policy(role=task.role, read_only=True),
                mask=equipment.mask,
                store=lambda data: self.services.blobs.put(task.tenant, assignment.execution_id, data, "text/plain"),
                limits=ToolLimits(command_timeout_seconds=limits.command_timeout_seconds),
                cache=equipment.cache(task),
            )
            async with AsyncExitStack() as stack:
                answer = final_answer_in(assignment.schema) if assignment.schema else FINAL_ANSWER
                toolbox = Toolbox({}, pipeline, answer=answer)
                if assignment.config.use_tools:
                    held = await stack.enter_async_context(open_toolkits(clone, pipeline, equipment.access, task))
                    toolbox = _toolbox(held, pipeline, task, answer)
                if earlier.started is None:
                    earlier = self._open(assignment, clone, run, toolbox, model_name, limits)
                parts = RunParts(
                    model=model,
                    toolbox=toolbox,
                    history=History(earlier.messages, context_tokens=capabilities.max_model_len),
                    budget=budget,
                    rules=Rules(max_reminders=0, max_tool_errors=6, answer_at_limit=True),
                    journal=run.journal,
                    guard=LoopGuard(toolbox.specs, earlier=earlier.steps),
                    steps=earlier.steps,
                )
                trajectory = await AgentRun(parts).drive()
        except (ModelError, InvalidRequest) as fault:
            return Answer(
                text="",
                stop_reason=StopReason.MODEL_ERROR,
                usage=budget.total(),
                model=model_name,
                audit_head=run.trail.head,
                error=str(fault),
            )
        text, stop = equipment.mask(trajectory.answer).strip(), trajectory.stop_reason
        error = "" if stop in _ANSWERED else trajectory.error or f"the run stopped: {stop}"
        return Answer(
            text=text,
            stop_reason=stop,
            usage=trajectory.usage,
            model=model_name,
            audit_head=run.trail.head,
            tools=tuple(
                equipment.mask(well_formed(call.name))[:MAX_NAME_CHARS]
                for step in trajectory.steps
                for call in step.reply.tool_calls
                if call.name != FINAL_ANSWER.name
            ),
            error=error or ("" if text else "the agent answered nothing"),
        )

    def _open(
        self,
        assignment: AnswerAssignment,
        clone: Clone,
        run: RecordedRun,
        toolbox: Toolbox,
        model: str,
        limits: Limits,
    ) -> RunState:
        """Begin the conversation."""
        messages = answer_messages(
            assignment, mount=clone.mount, iterations=limits.max_iterations, mask=self.services.equipment.mask
        )
        started = RunStarted(
            role=assignment.task.role,
            model=model,
            messages=messages,
            tools=tuple(spec.name for spec in toolbox.specs),
            environment=clone.environment.key,
        )
        run.journal.post(started)
        return RunState(agent_id=assignment.agent_id, started=started, messages=messages)


def _toolbox(held: Toolset, pipeline: Pipeline, task: Task, answer: OperationSpec) -> Toolbox:
    """The tools that the node names, as far as its task allows them; where it names none, those that only read.

    Raises InvalidRequest for a tool that is not here.
    """
    specs = [one.spec for kit in held.toolkits.values() for one in kit.definitions.values()]
    known = {name for spec in specs for name in (spec.name, spec.tool)}
    if missing := [name for name in task.tools if name not in known]:
        raise InvalidRequest(f"there is no tool {missing[0][:64]!r} here", field="agent_config.tools")
    wanted, permitted = frozenset(task.tools), frozenset(task.constraints.allowed_tools)
    allowed = frozenset(
        spec.name
        for spec in specs
        if (not wanted or {spec.name, spec.tool} & wanted) and (not permitted or {spec.name, spec.tool} & permitted)
    )
    policy = Policy(
        role=task.role,
        read_only=not wanted or not task.enable_tools or task.approval in _ASKING,
        # An empty set would allow everything.
        allowed=allowed or frozenset({"none"}),
        denied=frozenset(task.constraints.denied_tools),
        allowed_paths=task.constraints.allowed_paths,
    )
    return Toolbox(held.toolkits, pipeline.under(policy), idle=held.idle, unlisted=held.unlisted, answer=answer)


def _limits(limits: Limits, assignment: AnswerAssignment) -> Limits:
    """What the run may spend: its task's limits, and no more turns than the node says."""
    turns = assignment.config.max_iterations
    return replace(limits, max_iterations=min(turns, limits.max_iterations)) if turns > 0 else limits


def _profile(assignment: AnswerAssignment) -> str:
    return assignment.config.model or next(iter(assignment.task.profiles), "")


@dataclass(frozen=True, kw_only=True)
class OperateRun:
    """Carries out `OperateAssignment`s, each recorded like every run."""

    services: RunServices

    async def carry_out(self, assignment: OperateAssignment, clone: Clone) -> ToolResult:
        """What one call gives; a tool that fails, or is not there, gives a result that says so.

        A call that had ended in an earlier process is handed in again; one that had begun to change something, and of
        which nothing more is known, is not carried out again: its outcome is `interrupted`.

        Raises Fenced, Unavailable; a cancellation passes after it was recorded.
        """
        resumes = assignment.generation > 1
        async with self.services.recorded(assignment, resumes=resumes) as run:
            await run.journal.flush()
            result: ToolResult | None = None
            earlier = RunState(agent_id=assignment.agent_id)
            if resumes:
                earlier = await read_run(
                    self.services.log, assignment.task.tenant, assignment.execution_id, assignment.agent_id
                )
                if (known := concluded(earlier, ToolResult)) is not None:
                    return known
                run.trail.entries.extend(earlier.entries)
                result = await self._left_by(assignment, run)
            if earlier.started is None:
                run.journal.post(RunStarted(role=assignment.task.role, model="", messages=(), tools=(assignment.tool,)))
            if result is None:
                result = await self._call(assignment, clone, run)
            await run.journal.append(
                RunFinished(
                    stop_reason=StopReason.FINAL_ANSWER if result.success else StopReason.TOOL_ERROR,
                    artifacts=Artifacts(),
                    usage=Usage(tool_calls=1),
                    audit_head=run.trail.head,
                    answer=to_json(result).decode(),
                    error=result.error,
                )
            )
            return result

    async def _left_by(self, assignment: OperateAssignment, run: RecordedRun) -> ToolResult | None:
        """What is known of the call that an earlier process made; None where nothing had begun."""
        begun: AuditEntry | None = None
        stored = self.services.log.read(assignment.task.tenant, assignment.execution_id, agent_id=assignment.agent_id)
        async with aclosing(stored) as events:
            async for one in events:
                match one.event.body:
                    case ToolStarted(entry=entry):
                        begun = entry
                    case ToolFinished(entry=entry, result=result) if entry.outcome is not Outcome.CANCELLED:
                        return result
                    case _:
                        pass
        return close_interrupted(begun, run.trail, run.journal) if begun is not None else None

    async def _call(self, assignment: OperateAssignment, clone: Clone, run: RecordedRun) -> ToolResult:
        equipment, task = self.services.equipment, assignment.task
        pipeline = Pipeline(
            trail=run.trail,
            policy=Policy(
                role=task.role,
                read_only=not task.enable_tools,
                allowed=frozenset(task.constraints.allowed_tools),
                denied=frozenset(task.constraints.denied_tools),
                allowed_paths=task.constraints.allowed_paths,
            ),
            mask=equipment.mask,
            store=lambda data: self.services.blobs.put(task.tenant, assignment.execution_id, data, "text/plain"),
            limits=ToolLimits(
                command_timeout_seconds=task.constraints.limits.command_timeout_seconds,
                observation_chars=MAX_RESULT_CHARS,
            ),
            cache=equipment.cache(task),
        )
        async with open_toolkits(clone, pipeline, equipment.access, task) as held:
            found = _found(held.toolkits, assignment.tool)
            if found is None:
                return _refused(assignment, pipeline, f"there is no tool {assignment.tool[:64]!r} here")
            arguments = _arguments(assignment.arguments)
            if arguments is None:
                return _refused(assignment, pipeline, "the arguments are no JSON object")
            kit, definition = found
            return await pipeline.call(definition, kit, arguments)


def _found(kits: Mapping[str, Toolkit], name: str) -> tuple[Toolkit, Definition] | None:
    for kit in kits.values():
        for definition in kit.definitions.values():
            if definition.spec.name == name:
                return kit, definition
    return None


def _arguments(text: str) -> dict[str, object] | None:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def _refused(assignment: OperateAssignment, pipeline: Pipeline, error: str) -> ToolResult:
    """An audited result for a call that reached no tool."""
    name = assignment.tool[:64]
    spec = OperationSpec(name=name, tool="unknown", operation=name, description="", parameters={}, read_only=True)
    record = pipeline.trail.open(spec, arguments={}, secret={"raw": assignment.arguments}, call_id="")
    return record.close(ToolResult(success=False, operation=name, error=error, outcome=Outcome.INVALID), reason=error)
