"""The result of one agent's run as subscribers get it, and the summary of its own test runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import cast

from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, TestSummary
from swe_ai_fleet.domain.event import Event, ModelReplied, RunClaimed, ToolFinished, ToolStarted
from swe_ai_fleet.domain.json_values import integer, mapping, mappings, string
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import Step, StopReason, Trajectory
from swe_ai_fleet.ports import EventLog
from swe_ai_fleet.tools.truncation import truncate

MAX_RESULT_BYTES = 512 * 1024
MAX_INLINE_PATCH_BYTES = 128 * 1024
MAX_OUTPUT_CHARS = 2_000
"""Of each operation's output, head and tail."""


def last_tests(trajectory: Trajectory) -> TestSummary | None:
    """The summary of the run's last test operation, None if there was none."""
    results = (each.result for step in reversed(trajectory.steps) for each in reversed(step.observations))
    return next((summary for result in results if (summary := test_summary(result))), None)


def tests_show_change(steps: Sequence[Step], baseline: TestRun | None = None) -> bool:
    """Whether a test shows what a run changed: it failed earlier in the run or in the baseline, and passes at the end.

    The last run of tests counts; the baseline only if the last run had no fewer tests.
    """
    runs = [summary for step in steps for each in step.observations if (summary := test_summary(each.result))]
    if not runs:
        return False
    last, failed = runs[-1], {name for run in runs for name in run.failing}
    if baseline is not None and last.total >= baseline.summary.total:
        failed |= set(baseline.failing)
    return bool(failed - set(last.failing))


def test_summary(result: ToolResult) -> TestSummary | None:
    counts = mapping(result.metadata.get("tests"))
    if not counts:
        return None
    numbers = {name: integer(counts.get(name)) for name in ("passed", "failed", "errors", "skipped", "duration_ms")}
    return TestSummary(failing=tuple(string(test.get("id")) for test in mappings(counts.get("failing"))), **numbers)


class ToolRecord:
    """The tool calls of agents, by agent, from the events of an execution in their order.

    When a run starts over, its earlier calls are dropped: its audit chain starts over, too.
    """

    def __init__(self) -> None:
        self.operations: defaultdict[str, list[Mapping[str, object]]] = defaultdict(list)
        self.entries: defaultdict[str, list[AuditEntry]] = defaultdict(list)
        self._steps: dict[str, int] = {}

    def add(self, event: Event) -> None:
        body, agent_id = event.body, event.agent_id
        if isinstance(body, RunClaimed) and not body.resumes:
            self.operations.pop(agent_id, None)
            self.entries.pop(agent_id, None)
        elif isinstance(body, ModelReplied):
            self._steps[agent_id] = body.step
        elif isinstance(body, ToolStarted | ToolFinished):
            entry = body.entry
            self.entries[entry.agent_id].append(entry)
            if isinstance(body, ToolFinished):
                self.operations[entry.agent_id].append(_operation(entry, body.result, self._steps.get(agent_id, 0)))


async def tool_record(log: EventLog, tenant: str, execution_id: str, agent_id: str = "") -> ToolRecord:
    """The tool calls of one agent, or of all agents, from the log. Raises as reading does."""
    record = ToolRecord()
    async with aclosing(log.read(tenant, execution_id, agent_id=agent_id)) as events:
        async for stored in events:
            record.add(stored.event)
    return record


def agent_result(
    candidate: Candidate, task: Task, record: ToolRecord, patch: bytes, report: CheckReport | None = None
) -> bytes:
    """The result of one run as JSON of at most 512 KiB; the log has all of it. Without a `report` it is unchecked."""
    artifacts = candidate.artifacts
    objection = report.objection(needs_proof=task.constraints.require_verified) if report else ""
    tests = artifacts.tests or (report.tests if report else None)
    inline = len(patch) <= MAX_INLINE_PATCH_BYTES
    payload = result_head(task.task_id, task.execution_id, candidate.agent_id) | {
        "status": str(candidate.stop_reason),
        "success": candidate.stop_reason is StopReason.FINAL_ANSWER and not objection,
        "verdict": report.verdict if report else None,
        "verdict_reasons": list(report.reasons) if report else [],
        "operations": record.operations[candidate.agent_id],
        "artifacts": {
            "commit_sha": artifacts.commit_sha,
            "branch": artifacts.branch,
            "patch": patch.decode("utf-8", "replace")
            if inline or artifacts.patch is None
            else to_plain(artifacts.patch),
            "files_changed": list(artifacts.files_changed),
            "tests": to_plain(tests) if tests else None,
        },
        "audit_trail": [to_plain(entry) for entry in record.entries[candidate.agent_id]],
        "audit_head": candidate.audit_head,
        "usage": to_plain(candidate.usage + (report.usage if report else Usage())),
        "summary": candidate.summary[:16_000],
        "error": candidate.error or objection or None,
        "duration_ms": candidate.usage.duration_ms,
        "timestamp": candidate.submitted_at,
    }
    return bounded_result(payload)


def bounded_result(payload: Mapping[str, object]) -> bytes:
    """The result of a run as JSON of at most 512 KiB: parts of a longer one are dropped, outputs first."""
    bounded = dict(payload)
    data = json.dumps(bounded).encode()
    operations = cast("Sequence[Mapping[str, object]]", payload["operations"])
    short = [{**operation, "output": ""} for operation in operations]
    for name, less in (("operations", short), ("audit_trail", ()), ("operations", ())):
        if len(data) > MAX_RESULT_BYTES:
            bounded[name] = less
            data = json.dumps(bounded).encode()
    return data


def failed_result(
    task_id: str, execution_id: str, agent_id: str, error: str, *, status: str = "error", duration_ms: int = 0
) -> dict[str, object]:
    """The result of a run that submitted nothing, with the same fields as every result."""
    fields: dict[str, object] = {
        "status": status,
        "success": False,
        "operations": [],
        "artifacts": {"commit_sha": "", "branch": "", "patch": "", "files_changed": [], "tests": None},
        "audit_trail": [],
        "audit_head": "",
        "usage": {},
        "summary": "",
        "error": error,
        "duration_ms": duration_ms,
        "timestamp": now(),
    }
    return result_head(task_id, execution_id, agent_id) | fields


def result_head(task_id: str, execution_id: str, agent_id: str) -> dict[str, object]:
    return {
        "kind": "agent",
        "event_id": f"{execution_id}/{agent_id}/result",
        "task_id": task_id,
        "execution_id": execution_id,
        "agent_id": agent_id,
    }


def _operation(entry: AuditEntry, result: ToolResult, step: int) -> Mapping[str, object]:
    """A tool operation as results list it; the log has the rest of a long output."""
    return {
        "tool": entry.tool,
        "operation": entry.operation,
        "params": dict(entry.arguments),
        "success": entry.outcome is Outcome.SUCCESS,
        "outcome": str(entry.outcome),
        "output": truncate(result.content, MAX_OUTPUT_CHARS),
        "error": result.error or entry.reason,
        "exit_code": entry.exit_code,
        "duration_ms": entry.duration_ms,
        "step": step,
        "call_id": entry.call_id,
        "audit_seq": entry.seq,
        "at": entry.at,
    }
