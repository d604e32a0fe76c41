"""One call of a tool, the way every call goes: validated, held to policy, audited, masked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from swe_ai_fleet.agents.recorded_run import RecordedRun, RunServices
from swe_ai_fleet.agents.resumption import close_interrupted, concluded, read_run
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts
from swe_ai_fleet.domain.errand import OperateAssignment
from swe_ai_fleet.domain.event import RunFinished, RunStarted, ToolFinished, ToolStarted
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import Clone
from swe_ai_fleet.tools.catalogue import open_toolkits
from swe_ai_fleet.tools.definition import Definition
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.policy import Policy

MAX_RESULT_CHARS = 60_000
"""So much of a tool's output goes on to the next nodes; the whole of a longer one is kept as an artifact."""


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
