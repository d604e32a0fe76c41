"""What a reviewer is told: the task, and everything about the candidates fenced off."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from swe_ai_fleet.agents.prompting import LETTERS, Fence, changed_tests, evidence, fair_shares, in_words, rules, wishes
from swe_ai_fleet.agents.sub_agents.structured_output import opening
from swe_ai_fleet.domain.assignment import ReviewAssignment, Subject
from swe_ai_fleet.domain.candidate import Artifacts
from swe_ai_fleet.domain.message import Message
from swe_ai_fleet.ports import SecretMask

MAX_DIFF_CHARS = 40_000
MAX_CHARS = 120_000
MAX_EVIDENCE_CHARS = 12_000
MAX_SUMMARY_CHARS = 4_000
MAX_TESTS_CHARS = 8_000
MAX_REVIEW_CHARS = 6_000
_LEAST_CHARS = 400
_SECOND_LOOK = (
    "Where a review of yours is shown, it is of what the same author had handed in before; what you see is what has "
    "been handed in since, and what the author says is the answer to you. For each of your findings: leave it out if "
    "it is fixed or if you were wrong, name it again if it still holds. Your new review takes the place of that one."
)
_SETTLED = "Nothing has changed since you reviewed it: do not review it again, but give it a place in your order."
_EARLIER = "Your earlier review:"


def review_messages(
    assignment: ReviewAssignment,
    shown: Sequence[Subject],
    patches: Mapping[str, bytes],
    *,
    applied: Collection[str],
    may_run: bool,
    iterations: int,
    context_tokens: int,
    mask: SecretMask,
) -> tuple[Message, ...]:
    """The first messages of a review. Reviewers of so many candidates all get the same system message.

    Args:
        assignment: Who reviews what.
        shown: The candidates in the order of their letters.
        patches: Their changes, by candidate id.
        applied: The ids of those whose changes the clone has.
        may_run: Whether the reviewer may run commands, and has its proofs run.
        iterations: How many turns the reviewer has.
        context_tokens: What the model's context holds, 0 where that is unknown; the texts are cut to fit.
        mask: Hides secrets.
    """
    task = assignment.task
    known = [subject.candidate for subject in shown]
    digests = sorted(candidate.artifacts.patch.digest for candidate in known if candidate.artifacts.patch is not None)
    fence = Fence(mask, task.execution_id, *sorted(candidate.candidate_id for candidate in known), *digests)
    # At about four characters a token: a quarter of the context for the diffs, half of that for the evidence.
    room = min(MAX_CHARS, MAX_DIFF_CHARS * len(shown), context_tokens or MAX_DIFF_CHARS)
    diffs = [
        "" if subject.settled else patches.get(subject.candidate.candidate_id, b"").decode("utf-8", "replace")
        for subject in shown
    ]
    shares = fair_shares([len(diff) for diff in diffs], room)
    part = max(_LEAST_CHARS, room // sum(not subject.settled for subject in shown))
    sections = [(title, mask(text)) for title, text in (*wishes(task), *rules(task))]
    if assignment.unshown:
        sections.append(
            (
                "Asked for, and shown by nothing that ran",
                _unshown(mask(requirement) for requirement in assignment.unshown),
            )
        )
    for letter, subject, diff, share in zip(LETTERS, shown, diffs, shares, strict=False):
        lines = ["Its changes could not be applied to the clone."]
        if subject.candidate.candidate_id in applied:
            lines = [f"Its branch is {branch(letter)}."] if len(shown) > 1 else []
        lines += _settled(subject, fence) if subject.settled else _looked_at(subject, diff, share, part, fence)
        sections.append((f"Candidate {letter}" if len(shown) > 1 else "The candidate", "\n".join(lines)))
    if any(subject.earlier is not None and not subject.settled for subject in shown):
        sections.append(("Your second look", _SECOND_LOOK))
    sections.append(("Your perspective", assignment.perspective.instructions))
    facts = {"several": len(shown) > 1, "may_run": may_run, "iterations": iterations}
    return opening("review", sections, warning=fence.warning, **facts)


def _unshown(quotes: Iterable[str]) -> str:
    """Words of the task that somebody has to look up."""
    listed = "\n".join(f'- "{quote}"' for quote in quotes)
    return f"{listed}\nLook each up in the code. Where it is not met, a finding says so and names the place."


def branch(letter: str) -> str:
    """The branch that has a candidate's changes, in a clone that holds several."""
    return f"candidate-{letter.lower()}"


def _looked_at(subject: Subject, diff: str, share: int, part: int, fence: Fence) -> list[str]:
    """A candidate that is to be reviewed: `share` characters of its diff, and about `part` for all else."""
    candidate, report = subject.candidate, subject.report
    lines = [
        f"Its changes, {size_of(candidate.artifacts)}:",
        fence(diff, max(_LEAST_CHARS, share)),
        "What its author says of it:",
        fence(candidate.summary, min(MAX_SUMMARY_CHARS, part // 4)) or "Nothing.",
        "What the checks said:",
        evidence(report, fence, min(MAX_EVIDENCE_CHARS, part // 2)),
    ]
    if tests := changed_tests(report, fence, min(MAX_TESTS_CHARS, part // 4)):
        lines += ["Old tests that it changed, before and after:", tests]
    if subject.earlier is not None:
        lines += [_EARLIER, fence(in_words(subject.earlier), MAX_REVIEW_CHARS)]
    return lines


def _settled(subject: Subject, fence: Fence) -> list[str]:
    """A candidate that the reviewer has said all about."""
    earlier = fence(in_words(subject.earlier), MAX_REVIEW_CHARS) if subject.earlier is not None else ""
    return [f"Its changes: {size_of(subject.candidate.artifacts)}.", _SETTLED, _EARLIER, earlier]


def size_of(left: Artifacts) -> str:
    """How large a candidate's changes are, in words."""
    files = len(left.files_changed)
    return f"{files} file{'' if files == 1 else 's'}, {left.insertions} lines added, {left.deletions} removed"
