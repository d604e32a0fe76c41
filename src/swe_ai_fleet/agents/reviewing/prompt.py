"""What a reviewer is told: the task, and everything about the candidate fenced off."""

from __future__ import annotations

from swe_ai_fleet.agents.sub_agents.prompts import opening
from swe_ai_fleet.agents.task_sections import rules, wishes
from swe_ai_fleet.agents.untrusted import Fence, changed_tests, evidence, in_words
from swe_ai_fleet.domain.candidate import Artifacts
from swe_ai_fleet.domain.errand import ReviewAssignment
from swe_ai_fleet.domain.message import Message
from swe_ai_fleet.ports import SecretMask

MAX_DIFF_CHARS = 40_000
MAX_EVIDENCE_CHARS = 12_000
MAX_SUMMARY_CHARS = 4_000
MAX_TESTS_CHARS = 8_000
MAX_REVIEW_CHARS = 6_000
_SECOND_LOOK = (
    "You have reviewed this author's work before. What is shown above is what the author handed in after that, and "
    "what the author says is the answer to you. For each of your findings: leave it out if it is mended or if you were "
    "wrong, name it again if it still holds. Your new review takes the place of this one:"
)


def review_messages(
    assignment: ReviewAssignment,
    patch: bytes,
    *,
    applied: bool,
    may_run: bool,
    iterations: int,
    context_tokens: int,
    mask: SecretMask,
) -> tuple[Message, ...]:
    """The first messages of a review. All who review a candidate for the first time get the same ones, but for their
    perspective.

    Args:
        assignment: Who reviews what.
        patch: The candidate's changes.
        applied: Whether the clone has them.
        may_run: Whether the reviewer may run commands, and has its proofs run.
        iterations: How many turns the reviewer has.
        context_tokens: What the model's context holds, 0 where that is unknown; the texts are cut to fit.
        mask: Hides secrets.
    """
    task, candidate = assignment.task, assignment.candidate
    left = candidate.artifacts
    fence = Fence(mask, task.execution_id, candidate.candidate_id, left.patch.digest if left.patch else "")
    # At about four characters a token: a quarter of the context for the diff, half of that for the evidence.
    diff_chars = min(MAX_DIFF_CHARS, context_tokens or MAX_DIFF_CHARS)
    sections = [
        *((title, mask(text)) for title, text in (*wishes(task), *rules(task))),
        ("The candidate's changes", f"{size_of(left)}:\n{fence(patch.decode('utf-8', 'replace'), diff_chars)}"),
        ("What its author says of it", fence(candidate.summary, min(MAX_SUMMARY_CHARS, diff_chars // 4))),
        ("What the checks said", evidence(assignment.report, fence, min(MAX_EVIDENCE_CHARS, diff_chars // 2))),
        (
            "Old tests that it changed, before and after",
            changed_tests(assignment.report, fence, min(MAX_TESTS_CHARS, diff_chars // 4)),
        ),
        ("Your perspective", assignment.perspective.instructions),
        *_second_look(assignment, fence),
    ]
    facts = {"applied": applied, "may_run": may_run, "iterations": iterations}
    return opening("review", sections, warning=fence.warning, **facts)


def _second_look(assignment: ReviewAssignment, fence: Fence) -> list[tuple[str, str]]:
    """What a reviewer said before, and what its author did about it."""
    if assignment.earlier is None:
        return []
    said = fence(in_words(assignment.earlier), MAX_REVIEW_CHARS)
    return [("Your earlier review", f"{_SECOND_LOOK}\n{said}")]


def size_of(left: Artifacts) -> str:
    """How large a candidate's changes are, in words."""
    files = len(left.files_changed)
    return f"{files} file{'' if files == 1 else 's'}, {left.insertions} lines added, {left.deletions} removed"
