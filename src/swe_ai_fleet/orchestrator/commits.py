"""What the fleet's commits say."""

from __future__ import annotations

from swe_ai_fleet.domain.candidate import Candidate, CheckReport
from swe_ai_fleet.domain.task import Task

SUBJECT_LENGTH = 72
_MAX_SUMMARY_CHARS = 4_000


def commit_message(task: Task, winner: Candidate, evidence: CheckReport | None = None) -> str:
    """The task's first line as subject, the agent's summary as body, and trailers that lead back to the execution.

    They say the verdict, too: whoever reads the history sees what nothing was shown of.
    """
    subject = task.description.strip().splitlines()[0]
    if len(subject) > SUBJECT_LENGTH:
        subject = subject[: SUBJECT_LENGTH - 1].rstrip() + "…"
    trailers = (
        f"Fleet-Task: {task.task_id}",
        f"Fleet-Execution: {task.execution_id}",
        f"Fleet-Agent: {winner.agent_id}",
        f"Fleet-Audit-Head: {winner.audit_head}",
        *([f"Fleet-Verdict: {evidence.verdict}"] if evidence is not None and evidence.verdict is not None else []),
    )
    body = winner.summary.strip()[:_MAX_SUMMARY_CHARS]
    return "\n\n".join(part for part in (subject, body, "\n".join(trailers)) if part) + "\n"
