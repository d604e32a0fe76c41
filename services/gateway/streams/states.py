"""The state of what a message is about, as JSON: executions, agents, subtasks, approvals."""

from __future__ import annotations

from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.approval import ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.event import (
    RunClaimed,
    RunFinished,
    RunLost,
    RunReassigned,
    RunStarted,
    SubtaskEnded,
    SubtaskStarted,
)
from swe_ai_fleet.domain.execution import AgentProgress, ExecutionState
from swe_ai_fleet.domain.subtask import SKIPPED
from swe_ai_fleet.domain.task import PinnedRepository, Task
from swe_ai_fleet.domain.workflow import JsonValue, NodeStatus
from swe_ai_fleet.watching.text import one_line
from swe_ai_fleet.workflows.updates import json_or_text, usage_state

State = dict[str, JsonValue]
_SHOWN_CHARS = 400
_WORDS_CHARS = 4_000


def started(task: Task, repository: PinnedRepository) -> State:
    """An execution at its start."""
    return {
        "task_id": task.task_id,
        "kind": task.kind.value,
        "description": one_line(task.description[: 2 * _SHOWN_CHARS], _SHOWN_CHARS),
        "role": str(task.role),
        "num_agents": task.num_agents,
        "repository": repository.location,
        "commit": repository.commit,
    }


def agent_state(
    agent: AgentProgress | None, body: RunClaimed | RunStarted | RunFinished | RunLost | RunReassigned
) -> State:
    """An agent's run at its start or end. `status` is one of a node's: running, waiting, completed, failed, pending."""
    known = agent or AgentProgress(agent_id="")
    state: State = {
        "kind": "agent",
        "status": NodeStatus.RUNNING.value,
        "attempt": known.attempt,
        "step": known.step,
        "model": known.model,
        "usage": usage_state(known.usage),
    }
    match body:
        case RunClaimed(host=host, resumes=resumes):
            return {**state, "host": host, "resumes": resumes}
        case RunStarted(role=role, model=model, tools=tools):
            return {**state, "role": role, "model": model, "tools": len(tools)}
        case RunFinished(stop_reason=reason, artifacts=left, error=error):
            return {
                **state,
                "status": (NodeStatus.FAILED if error else NodeStatus.COMPLETED).value,
                "stop_reason": reason.value,
                "error": error[:_WORDS_CHARS],
                "usage": usage_state(body.usage),
                "files_changed": len(left.files_changed),
                "insertions": left.insertions,
                "deletions": left.deletions,
            }
        case RunLost(reason=reason):
            return {**state, "status": NodeStatus.FAILED.value, "stop_reason": "lost", "error": reason[:_WORDS_CHARS]}
        case RunReassigned(reason=reason):
            return {**state, "status": NodeStatus.PENDING.value, "error": reason[:_WORDS_CHARS]}


def subtask_state(body: SubtaskStarted | SubtaskEnded) -> State:
    """A subtask at its start or end."""
    if isinstance(body, SubtaskStarted):
        return {"kind": "subtask", "status": NodeStatus.RUNNING.value, "execution_id": body.execution_id}
    ended = body.outcome
    skipped = ended.status == SKIPPED
    status = NodeStatus.COMPLETED if ended.merged else NodeStatus.SKIPPED if skipped else NodeStatus.FAILED
    return {
        "kind": "subtask",
        "status": status.value,
        "execution_id": ended.execution_id,
        "execution_status": ended.status,
        "commit": ended.commit_sha,
        "error": ended.error[:_WORDS_CHARS],
        "usage": usage_state(ended.usage),
    }


def asked(request: ApprovalRequest) -> State:
    """What a person is asked."""
    return {
        "approval_id": request.approval_id,
        "agent_id": request.agent_id,
        "policy": request.policy.value,
        "call": request.call.name,
        "approach": request.approach[:_WORDS_CHARS],
        "reasons": list(request.reasons),
        "requested_at": request.requested_at,
        "expires_at": request.expires_at,
    }


def decided(resolution: ApprovalResolution) -> State:
    """What a person said."""
    return {
        "approval_id": resolution.approval_id,
        "decision": resolution.decision.value,
        "text": resolution.text[:_WORDS_CHARS],
        "approver": resolution.approver,
        "at": resolution.at,
    }


def result(state: ExecutionState) -> State:
    """What an execution that has ended gave."""
    told: State = {
        "status": state.status.value,
        "winner_id": state.winner_id,
        "verdict": state.verdict.value if state.verdict else "",
        "verdict_reasons": list(state.best_report.reasons) if state.best_report else [],
        "error": state.error,
        "usage": usage_state(state.usage),
        "duration_ms": state.duration_ms,
        "candidates": [to_plain(ranked) for ranked in state.ranking],
    }
    if state.delivered is not None:
        told |= {"branch": state.delivered.branch, "commit": state.delivered.commit_sha}
    if state.output is not None and state.output.output:
        told["output"] = json_or_text(state.output.output)
    return told
