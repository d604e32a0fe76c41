"""A reviewer's answer as a critique: bounded, masked, and about files that are there."""

from __future__ import annotations

from swe_ai_fleet.agents.reviewing.shape import CritiqueShape, FindingShape
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errand import ReviewAssignment
from swe_ai_fleet.domain.moment import now
from swe_ai_fleet.domain.review import Critique, Finding, Proof
from swe_ai_fleet.domain.text import shortened
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.secrets import well_formed

MAX_FINDINGS = 30
MAX_FINDING_CHARS = 2_000
MAX_CONTENT_CHARS = 8_000
MAX_FILE_CHARS = 500
MAX_COMMAND_CHARS = 4_000
MAX_ERROR_CHARS = 2_000


def critique_of(
    answer: CritiqueShape, assignment: ReviewAssignment, *, tree: Tree, mask: SecretMask, usage: Usage
) -> Critique:
    """The critique that an answer makes. What must be fixed is kept before what need not, if it is too much.

    A file that is neither in the patch nor in the repository stays in the finding's text alone.

    Args:
        answer: What the reviewer said.
        assignment: Who reviewed what.
        tree: The clone with the patch applied.
        mask: Hides secrets.
        usage: What the review spent.
    """
    changed = frozenset(assignment.candidate.artifacts.files_changed)
    said = sorted(answer.findings, key=lambda finding: not finding.must_fix)[:MAX_FINDINGS]
    return Critique(
        reviewer_id=assignment.reviewer_id,
        candidate_id=assignment.candidate.candidate_id,
        round=assignment.round,
        verdict=answer.verdict,
        score=round(answer.score, 4),
        content=_shown(answer.content, mask, MAX_CONTENT_CHARS),
        findings=tuple(_finding(finding, changed, tree, mask) for finding in said),
        usage=usage,
        at=now(),
    )


def no_critique(assignment: ReviewAssignment, error: str, *, mask: SecretMask, usage: Usage) -> Critique:
    """A review that came to nothing, and why."""
    return Critique(
        reviewer_id=assignment.reviewer_id,
        candidate_id=assignment.candidate.candidate_id,
        round=assignment.round,
        usage=usage,
        error=_shown(error, mask, MAX_ERROR_CHARS) or "the review came to nothing",
        at=now(),
    )


def _finding(said: FindingShape, changed: frozenset[str], tree: Tree, mask: SecretMask) -> Finding:
    file, text = _path(said.file), said.text
    if file and file not in changed and not _there(file, tree):
        text, file = f"{said.file}: {text}", ""
    return Finding(
        text=_shown(text, mask, MAX_FINDING_CHARS),
        file=_shown(file, mask, MAX_FILE_CHARS),
        line=said.line if file else 0,
        must_fix=said.must_fix,
        proof=_proof(said) if said.must_fix else None,
    )


def _proof(said: FindingShape) -> Proof | None:
    """The proof that a reviewer offers, not yet tried; a command that is too long, or none, is no proof."""
    command = well_formed(said.command).strip()
    if not command or "\0" in command or len(command) > MAX_COMMAND_CHARS:
        return None
    return Proof(command=command, expected=shortened(well_formed(said.expected).strip(), MAX_COMMAND_CHARS))


def _path(said: str) -> str:
    """The path as git writes it; models put the mount, `./` or a diff's `a/` and `b/` in front."""
    path = said.strip().strip("`'\"")
    for prefix in ("/workspace/", "./"):
        path = path.removeprefix(prefix)
    return path if 0 < len(path) <= MAX_FILE_CHARS and "\0" not in path else ""


def _there(path: str, tree: Tree) -> bool:
    try:
        tree.info(path)
    except (ToolFailure, ValueError):
        return False
    return True


def _shown(text: str, mask: SecretMask, limit: int) -> str:
    return shortened(mask(well_formed(text)).strip(), limit)
