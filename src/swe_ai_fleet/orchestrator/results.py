"""What subscribers notified at the end of an execution."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace

from swe_ai_fleet.agents.results import MAX_INLINE_PATCH_BYTES, MAX_OUTPUT_CHARS, MAX_RESULT_BYTES, tool_record
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.candidate import Artifacts, Candidate, RankedCandidate
from swe_ai_fleet.domain.event import ExecutionStatus, NodeUpdated
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.json_values import mapping
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.orchestrator.spending import expenses
from swe_ai_fleet.ports import BlobStore, EventLog
from swe_ai_fleet.tools.truncation import truncate


async def execution_result(log: EventLog, blobs: BlobStore, state: ExecutionState) -> bytes:
    """The final result of an execution as JSON of at most 512 KiB; what is too long stands there by reference."""
    task = state.task
    winner = state.candidates.get(state.winner_id)
    # Of one agent where there is a winner, else of all.
    record = await tool_record(log, task.tenant, task.execution_id, winner.agent_id if winner else "")
    best = state.best_report
    agents = [winner.agent_id] if winner else list(record.entries)
    payload: dict[str, object] = {
        "kind": "execution",
        "event_id": f"{state.execution_id}/result",
        "task_id": task.task_id,
        "execution_id": state.execution_id,
        "agent_id": winner.agent_id if winner else "",
        "status": str(state.status),
        "success": state.status is ExecutionStatus.COMPLETED,
        "operations": [operation for agent_id in agents for operation in record.operations[agent_id]],
        "artifacts": await _artifacts(state, winner, blobs),
        "audit_trail": [to_plain(entry) for agent_id in agents for entry in record.entries[agent_id]],
        "audit_head": state.audit_head,
        "audit_heads": {agent.agent_id: agent.audit_head for agent in state.agents.values() if agent.audit_head},
        "audit_signatures": [to_plain(head) for head in state.signed_heads.values()],
        "winner": state.winner_id,
        "verdict": best.verdict if best else None,
        "verdict_reasons": list(best.reasons) if best else [],
        "baseline": to_plain(state.baseline) if state.baseline else None,
        "examination": to_plain(state.examination) if state.examination else None,
        "candidates": [_candidate(state, ranked) for ranked in state.ranking],
        "subtasks": [to_plain(outcome) for outcome in state.subtask_outcomes.values()],
        "outputs": _outputs(state),
        "nodes": [_node(update) for update in state.nodes.values()],
        "usage": asdict(state.usage),
        "expenses": [to_plain(expense) for expense in expenses(state)],
        "error": state.error or None,
        "duration_ms": state.duration_ms,
        "timestamp": state.finished_at,
    }
    return await _bounded(payload, task, blobs)


async def _artifacts(state: ExecutionState, winner: Candidate | None, blobs: BlobStore) -> dict[str, object]:
    left, delivered = winner.artifacts if winner else Artifacts(), state.delivered
    patch: object = ""
    # What subtasks come to is nobody's candidate.
    if (ref := left.patch or (delivered.patch if delivered else None)) is not None:
        inline = ref.size <= MAX_INLINE_PATCH_BYTES
        patch = (await blobs.get(ref)).decode("utf-8", "replace") if inline else to_plain(ref)
    kept, report = delivered or state.integration, state.best_report
    tests = left.tests or (report.tests if report else None)
    return {
        "commit_sha": delivered.commit_sha if delivered else left.commit_sha,
        "branch": delivered.branch if delivered else left.branch,
        "patch": patch,
        "files_changed": list(left.files_changed),
        "tests": to_plain(tests) if tests else None,
        "bundle": to_plain(kept.bundle) if kept and kept.bundle else None,
    }


def _candidate(state: ExecutionState, ranked: RankedCandidate) -> dict[str, object]:
    """A candidate's place, with what checks and peers say of it; its patch by reference."""
    name = ranked.candidate_id
    patch, report = state.candidates[name].artifacts.patch, state.reports.get(name)
    checks = report.results if report else ()
    return {
        **mapping(to_plain(ranked)),
        "patch": to_plain(patch) if patch else None,
        "checks": [to_plain(replace(check, output=truncate(check.output, MAX_OUTPUT_CHARS))) for check in checks],
        "critiques": [to_plain(critique) for critique in state.critiques if critique.candidate_id == name],
    }


def _outputs(state: ExecutionState) -> object:
    """What a workflow gave, or where it is kept; nothing of what is no workflow, or gave none."""
    if state.output is None:
        return None
    return to_plain(state.output.output_blob) if state.output.output_blob else json.loads(state.output.output or "null")


def _node(update: NodeUpdated) -> dict[str, object]:
    return {
        "node_id": update.node_id,
        "status": str(update.status),
        "attempt": update.attempt,
        "execution_id": update.execution_id,
        "error": update.error,
    }


async def _bounded(payload: Mapping[str, object], task: Task, blobs: BlobStore) -> bytes:
    """The payload as JSON, its longest lists moved to the blob store one by one until it fits."""
    parts = {name: json.dumps(value).encode() for name, value in payload.items()}
    for name in ("audit_trail", "operations", "artifacts", "outputs", "nodes", "candidates"):
        if len(data := _object(parts)) <= MAX_RESULT_BYTES:
            return data
        ref = await blobs.put(task.tenant, task.execution_id, parts[name], "application/json")
        parts[name] = json.dumps(to_plain(ref)).encode()
    return _object(parts)


def _object(parts: Mapping[str, bytes]) -> bytes:
    """The JSON object whose members are JSON already."""
    return b"{%s}" % b", ".join(b'"%s": %s' % (name.encode(), part) for name, part in parts.items())
