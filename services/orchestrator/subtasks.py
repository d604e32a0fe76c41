"""Subtasks on the wire: plans to be split, and how the subtasks of an orchestration stand."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.orchestrator.requests import repo_ref
from swe_ai_fleet.contract import to_enum
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.subtask import SKIPPED, Derivation, Subtask, SubtaskOutcome
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.orchestrator.child_tasks import child_task_id
from swe_ai_fleet.orchestrator.derivations import Plan

MAX_DESCRIPTION_CHARS = 2_000
MAX_ERROR_CHARS = 500


def plan_of(request: pb.DeriveSubtasksRequest) -> Plan:
    """The plan of a request. Raises InvalidRequest naming the field."""
    roles: list[Role] = []
    for number, name in enumerate(request.roles):
        try:
            roles.append(Role.parse(name))
        except InvalidRequest as fault:
            raise InvalidRequest(fault.message, field=f"roles[{number}]", hint=fault.hint) from None
    return Plan(
        description=request.task_description,
        case_id=request.case_id,
        plan_id=request.plan_id,
        roles=tuple(dict.fromkeys(roles)),
        strategy=request.strategy.strip().lower() or "auto",
        repo=repo_ref(request.repo) if request.HasField("repo") else None,
    )


def derived(plan: Plan, derivation: Derivation) -> pb.DeriveSubtasksResponse:
    """A split plan. Its tasks have ids that no other derivation's have."""
    names = {one.subtask_id: f"{derivation.derivation_id}.{one.subtask_id}" for one in derivation.subtasks}
    return pb.DeriveSubtasksResponse(
        tasks=[atomic_task(one, names, case_id=plan.case_id, plan_id=plan.plan_id) for one in derivation.subtasks],
        derivation_id=derivation.derivation_id,
        total_tasks=len(derivation.subtasks),
    )


def subtask_results(state: ExecutionState) -> list[pb.SubtaskResult]:
    """The subtasks of an orchestration as they stand, dependencies first; their texts cut."""
    if state.derivation is None:
        return []
    task = state.task
    names = {one.subtask_id: child_task_id(task.task_id, one.subtask_id) for one in state.derivation.subtasks}
    return [
        _result(atomic_task(one, names, case_id=task.case_id, plan_id=task.plan_id, cut=True), state, one.subtask_id)
        for one in state.derivation.subtasks
    ]


def _result(task: pb.AtomicTask, state: ExecutionState, name: str) -> pb.SubtaskResult:
    outcome = state.subtask_outcomes.get(name, SubtaskOutcome(subtask_id=name))
    began = state.subtask_executions.get(name, "")
    return pb.SubtaskResult(
        task=task,
        execution_id=outcome.execution_id or began,
        status=_status(outcome, begun=bool(began)),
        commit_sha=outcome.commit_sha,
        error_message=outcome.error[:MAX_ERROR_CHARS],
    )


def _status(outcome: SubtaskOutcome, *, begun: bool) -> pb.DeliberationStatus:
    """Where a subtask stands: one that won and could not be merged has failed, one that never began is cancelled."""
    if outcome.status == SKIPPED:
        name = ExecutionStatus.CANCELLED.name
    elif not outcome.status:
        name = ExecutionStatus.IN_PROGRESS.name if begun else ExecutionStatus.PENDING.name
    elif outcome.status == ExecutionStatus.COMPLETED and not outcome.merged:
        name = ExecutionStatus.FAILED.name
    else:
        name = ExecutionStatus(outcome.status).name
    return to_enum(pb.DeliberationStatus, name)


def atomic_task(
    of: Subtask, names: Mapping[str, str], *, case_id: str, plan_id: str, cut: bool = False
) -> pb.AtomicTask:
    """A subtask for the wire. `names` are its task id and those of what it depends on, by subtask id."""
    return pb.AtomicTask(
        task_id=names[of.subtask_id],
        role=of.role,
        description=of.description[:MAX_DESCRIPTION_CHARS] if cut else of.description,
        dependencies=[names[name] for name in of.dependencies],
        constraints=pb.TaskConstraints(allowed_paths=of.allowed_paths) if of.allowed_paths else None,
        case_id=case_id,
        plan_id=plan_id,
        priority=of.priority,
    )
