"""An author's second go: its earlier candidate in its clone, and in its prompt what was said of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from swe_ai_fleet.agents.opening import SecondGo, revision_text
from swe_ai_fleet.agents.untrusted import Fence, evidence, in_words
from swe_ai_fleet.domain.candidate import Revision
from swe_ai_fleet.domain.errand import Assignment
from swe_ai_fleet.domain.errors import PatchRejected
from swe_ai_fleet.domain.event import RunStarted
from swe_ai_fleet.domain.message import Message
from swe_ai_fleet.domain.review import Critique
from swe_ai_fleet.ports import BlobStore, Clone, EventLog, SecretMask

MAX_DIFF_CHARS = 24_000
MAX_EVIDENCE_CHARS = 12_000
MAX_SUMMARY_CHARS = 4_000
MAX_CRITIQUE_CHARS = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierWork:
    """Puts what an author handed in before into a clean clone.

    Args:
        log: Has the author's first run.
        blobs: Has the patch.
        mask: Hides secrets.
    """

    log: EventLog
    blobs: BlobStore
    mask: SecretMask

    async def restore(self, assignment: Assignment, clone: Clone) -> SecondGo | None:
        """Apply the patch of the candidate that is revised; what the author is told, None for a first draft.

        It begins with what the author's first run began with, to the byte: a model server has that in its cache, and
        the repository as all candidates are shown it is not the one in this clone.

        Raises NotFound (the patch is gone), Unavailable.
        """
        revision, task = assignment.revision, assignment.task
        if revision is None:
            return None
        ref = revision.candidate.artifacts.patch
        patch = await self.blobs.get(ref) if ref is not None else b""
        try:
            await clone.apply(patch)
            applied = True
        except PatchRejected:
            applied = False
        text = told(revision, patch, applied=applied, execution_id=task.execution_id, mask=self.mask)
        return SecondGo(text=text, first=await self._first(assignment))

    async def _first(self, assignment: Assignment) -> tuple[Message, ...]:
        events = self.log.read(
            assignment.task.tenant, assignment.execution_id, agent_id=assignment.author_id or assignment.agent_id
        )
        async with aclosing(events) as stored:
            async for one in stored:
                if isinstance(one.event.body, RunStarted):
                    return one.event.body.messages
        return ()


def told(revision: Revision, patch: bytes, *, applied: bool, execution_id: str, mask: SecretMask) -> str:
    """What an author is told behind the opening: its changes, the evidence, and the critiques without names.

    Args:
        revision: What is revised.
        patch: The changes of the earlier candidate.
        applied: Whether the clone has them.
        execution_id: Of the task.
        mask: Hides secrets.
    """
    candidate = revision.candidate
    fence = Fence(mask, execution_id, "revision", candidate.candidate_id, str(revision.round))
    return revision_text(
        applied=applied,
        warning=fence.warning,
        changes=fence(patch.decode("utf-8", "replace"), MAX_DIFF_CHARS),
        summary=fence(candidate.summary, MAX_SUMMARY_CHARS),
        evidence=evidence(revision.report, fence, MAX_EVIDENCE_CHARS),
        reviews=[
            {
                "verdict": str(one.verdict),
                "score": f"{one.score:g} of 1",
                "text": fence(in_words(one), MAX_CRITIQUE_CHARS),
            }
            for one in _heard(revision.critiques)
        ],
    )


def _heard(critiques: Sequence[Critique]) -> list[Critique]:
    """The critiques that say something, in an order that tells nothing of who wrote them when."""
    return sorted((one for one in critiques if not one.error), key=lambda one: (one.round, one.reviewer_id))
