"""What a judge is told: the task, and the candidates under letters, everything about them fenced off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swe_ai_fleet.agents.ballot import LETTERS, fair_shares
from swe_ai_fleet.agents.sub_agents.prompts import opening
from swe_ai_fleet.agents.task_sections import wishes
from swe_ai_fleet.agents.untrusted import Fence, changed_tests, evidence, in_words
from swe_ai_fleet.domain.candidate import CheckReport
from swe_ai_fleet.domain.errand import JudgeAssignment
from swe_ai_fleet.domain.message import Message
from swe_ai_fleet.domain.review import Critique
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.truncation import beginning

MAX_CHARS = 120_000
UNKNOWN_CONTEXT_CHARS = 48_000
_CHARS_PER_TOKEN = 3
# Of the context; the rest is for the answer and for texts of more tokens than that.
_USED = 0.7
_LEAST_CHARS = 400
_TASK_CHARS = 16_000


def room_for(context_tokens: int) -> int:
    """How many characters a ballot may have in a model's context; 0 tokens: nobody knows what it holds."""
    return min(MAX_CHARS, round(context_tokens * _CHARS_PER_TOKEN * _USED)) if context_tokens else UNKNOWN_CONTEXT_CHARS


def judge_messages(
    assignment: JudgeAssignment, order: Sequence[str], patches: Mapping[str, bytes], *, room: int, mask: SecretMask
) -> tuple[Message, ...]:
    """One ballot. Candidates have letters in its order; of their authors only what they answered to reviewers appears.

    Args:
        assignment: What is judged; each candidate with its evidence and what reviewers found.
        order: The candidates' ids as they are to be shown.
        patches: Their changes, by candidate id.
        room: About how many characters it may have; diffs are cut evenly to fit.
        mask: Hides secrets.
    """
    task = assignment.task
    known = {one.candidate_id: one for one in assignment.candidates}
    reports = {report.candidate_id: report for report in assignment.reports}
    # The digests depend on the very texts, so nobody can write the fence's word into one of them.
    fence = Fence(
        mask, task.execution_id, *sorted(patch.digest for one in known.values() if (patch := one.artifacts.patch))
    )
    asked = [(title, beginning(mask(text), min(_TASK_CHARS, room // 4))) for title, text in wishes(task)]
    left = room - sum(len(text) for _, text in asked)
    part = max(_LEAST_CHARS, left // 6 // max(1, len(order)))
    diffs = [patches.get(name, b"").decode("utf-8", "replace") for name in order]
    shares = fair_shares([len(diff) for diff in diffs], left - 2 * part * len(order))
    for at, name in enumerate(order):
        artifacts, report = known[name].artifacts, reports.get(name, CheckReport(candidate_id=name))
        changed = f"{artifacts.insertions} lines added, {artifacts.deletions} removed"
        tests = changed_tests(report, fence, part // 2)
        text = [
            f"{changed}:\n{fence(diffs[at], max(_LEAST_CHARS, shares[at]))}",
            "What the checks said:",
            evidence(report, fence, part // 2 if tests else part),
        ]
        if tests:
            text += ["Old tests that it changed, before and after:", tests]
        if found := _reviews([one for one in assignment.critiques if one.candidate_id == name]):
            text += ["What reviewers found:", fence(found, part)]
        if answer := fence(assignment.answers.get(name, ""), part // 2):
            text += ["What its author answered to them:", answer]
        asked.append((f"Candidate {LETTERS[at]}", "\n".join(text)))
    return opening("judge", asked, warning=fence.warning)


def _reviews(critiques: Sequence[Critique]) -> str:
    """What reviewers said, without their names and their marks: the judge is to make up its own mind."""
    return "\n".join(f"Review {number}: {in_words(one)}" for number, one in enumerate(critiques, start=1))
