"""The result of one agent's run as subscribers get it, and the summary of its own test runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.candidate import Candidate, TestSummary
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason, Trajectory

MAX_RESULT_BYTES = 512 * 1024
MAX_INLINE_PATCH_BYTES = 128 * 1024


def last_tests(trajectory: Trajectory) -> TestSummary | None:
    """The summary of the run's last test operation, None if there was none."""
    for step in reversed(trajectory.steps):
        for seen in reversed(step.observations):
            summary = test_summary(seen.result)
            if summary is not None:
                return summary
    return None


def test_summary(result: ToolResult) -> TestSummary | None:
    """The test run a tool result speaks of, None if it speaks of none."""
    tests = result.metadata.get("tests")
    if not isinstance(tests, dict):
        return None
    counts = cast("Mapping[str, object]", tests)
    failing = cast("list[Mapping[str, object]]", counts.get("failing", []))
    return TestSummary(
        passed=_count(counts, "passed"),
        failed=_count(counts, "failed"),
        errors=_count(counts, "errors"),
        skipped=_count(counts, "skipped"),
        duration_ms=_count(counts, "duration_ms"),
        failing=tuple(str(failure.get("id", "")) for failure in failing),
    )


def _count(counts: Mapping[str, object], name: str) -> int:
    value = counts.get(name, 0)
    return value if isinstance(value, int) else 0


def agent_result(candidate: Candidate, task: Task, trail: Sequence[AuditEntry], patch: bytes) -> bytes:
    """The result of one run as JSON of at most 512 KiB; the log has in full what is left out for size."""
    left = candidate.artifacts
    inline = len(patch) <= MAX_INLINE_PATCH_BYTES
    payload: dict[str, object] = {
        "kind": "agent",
        "event_id": f"{task.execution_id}/{candidate.agent_id}/result",
        "task_id": task.task_id,
        "execution_id": task.execution_id,
        "agent_id": candidate.agent_id,
        "status": str(candidate.stop_reason),
        "success": candidate.stop_reason is StopReason.FINAL_ANSWER,
        "operations": [operation(entry) for entry in trail if entry.outcome is not Outcome.STARTED],
        "artifacts": {
            "commit_sha": left.commit_sha,
            "branch": left.branch,
            "patch": patch.decode("utf-8", "replace") if inline or left.patch is None else to_plain(left.patch),
            "files_changed": list(left.files_changed),
            "tests": to_plain(left.tests) if left.tests else None,
        },
        "audit_trail": [to_plain(entry) for entry in trail],
        "audit_head": candidate.audit_head,
        "usage": to_plain(candidate.usage),
        "summary": candidate.summary[:16_000],
        "error": candidate.error or None,
        "duration_ms": candidate.usage.duration_ms,
        "timestamp": candidate.submitted_at,
    }
    data = json.dumps(payload).encode()
    for name in ("audit_trail", "operations"):
        if len(data) > MAX_RESULT_BYTES:
            data = json.dumps(payload | {name: []}).encode()
            payload[name] = []
    return data


def operation(entry: AuditEntry) -> dict[str, object]:
    """A tool operation as results list it."""
    return {
        "tool": entry.tool,
        "operation": entry.operation,
        "params": dict(entry.arguments),
        "success": entry.outcome is Outcome.SUCCESS,
        "outcome": str(entry.outcome),
        "exit_code": entry.exit_code,
        "duration_ms": entry.duration_ms,
        "audit_seq": entry.seq,
        "at": entry.at,
    }
