"""The outcomes of a fleet, stored in a bucket that all processes share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Self

import structlog

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.budget import check_cost
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.domain.memory import (
    BEST_RATING,
    LEAST_RATING,
    MAX_COMMENT_CHARS,
    MAX_REASON_CHARS,
    Recommendation,
    WorkOutcome,
    check_metadata,
)
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.domain.text import check_length, utf8, well_formed
from swe_ai_fleet.extensions.knowledge.recommending import Question, recommend
from swe_ai_fleet.following import Follower, rewritten
from swe_ai_fleet.ports import KeyValue, KeyValueChange, KeyValueEntry, SecretMask
from swe_ai_fleet.tools.secrets import Secrets

MAX_CONSIDERED = 5_000
"""How many of a tenant's newest outcomes a recommendation considers; a fifth more may be in memory."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MAX_CHARS = 4_096
_MAX_AGENTS = 1_000
_TEXTS = ("goal", "repository", "approach", "council", "model", "model_profile", "rated_by", "comment", "reason")
_log = structlog.get_logger(__name__)


class LearningTracker:
    """Stores outcomes and recommends approaches for further work. An async context, which follows the bucket.

    Args:
        store: The bucket; all trackers that share it learn from the same outcomes.
        mask: Replaces secrets in all texts.
        now: Returns the present time, UTC.
    """

    def __init__(
        self,
        store: KeyValue,
        *,
        mask: SecretMask | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._mask = mask or Secrets()
        self._now = now
        self._outcomes: dict[str, dict[str, tuple[int, WorkOutcome]]] = {}
        self._follower = Follower(
            "the bucket of outcomes",
            lambda revision: store.changes(from_revision=revision, follow=True),
            self._take,
            hint="restart the context service",
        )

    async def __aenter__(self) -> Self:
        """Read the stored outcomes. Raises Unavailable."""
        await self._follower.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._follower.stop()

    def check(self) -> None:
        """Raises Unavailable if following has ended, so that the outcomes become stale."""
        self._follower.check()

    async def record(self, outcome: WorkOutcome) -> WorkOutcome:
        """Store an outcome; a repetition changes nothing, and an earlier rating by people stays.

        Raises InvalidRequest naming the field, Unavailable.
        """
        _check(outcome)
        outcome = self._masked(replace(outcome, ended_at=outcome.ended_at or self._at()))

        def merged(earlier: WorkOutcome | None) -> WorkOutcome:
            if earlier is None or outcome.rating:
                return outcome
            return replace(outcome, rating=earlier.rating, rated_by=earlier.rated_by, comment=earlier.comment)

        return await self._change(outcome.tenant, outcome.subject_id, merged)

    async def rate(
        self, tenant: str, subject_id: str, rating: int, *, by: str = "", comment: str | None = None
    ) -> WorkOutcome:
        """Rate an outcome from 1 to 5, with a comment; the last rating counts.

        A `comment` has at most `MAX_COMMENT_CHARS`; None keeps the earlier one. Raises InvalidRequest, NotFound,
        Unavailable.
        """
        _check_rating(rating, least=LEAST_RATING)
        if comment is not None:
            check_length(comment, MAX_COMMENT_CHARS, field="comment")

        def rated(outcome: WorkOutcome | None) -> WorkOutcome:
            if outcome is None:
                raise _unknown(subject_id)
            words = outcome.comment if comment is None else self._clean(comment)
            return replace(outcome, rating=rating, rated_by=self._clean(by[:128]), comment=words)

        return await self._change(tenant, subject_id, rated)

    async def get(self, tenant: str, subject_id: str) -> WorkOutcome:
        """One outcome. Raises NotFound, Unavailable."""
        outcome = _loaded(await self._store.get(_key(tenant, subject_id)))
        if outcome is None:
            raise _unknown(subject_id)
        return outcome

    def outcomes(self, tenant: str = DEFAULT_TENANT) -> list[WorkOutcome]:
        """The outcomes to consider, the newest first. Raises Unavailable if they are stale."""
        self._follower.check()
        outcomes = [outcome for _, outcome in self._outcomes.get(_token(tenant), {}).values()]
        return sorted(outcomes, key=_age, reverse=True)[:MAX_CONSIDERED]

    async def recommend(self, question: Question, tenant: str = DEFAULT_TENANT) -> Recommendation:
        """The recommendation for a new task; the caller decides. Raises as `outcomes` does."""
        outcomes = self.outcomes(tenant)
        return await asyncio.to_thread(lambda: recommend(question, outcomes))

    async def _change(
        self, tenant: str, subject_id: str, change: Callable[[WorkOutcome | None], WorkOutcome]
    ) -> WorkOutcome:
        def changed(entry: KeyValueEntry | None) -> bytes | None:
            current = _loaded(entry)
            changed_outcome = change(current)
            return None if changed_outcome == current else to_json(changed_outcome)

        name = f"the outcome of {subject_id[:64]!r}"
        entry = await rewritten(self._store, _key(tenant, subject_id), changed, name=name)
        assert entry is not None
        self._take(KeyValueChange(key=entry.key, value=entry.value, revision=entry.revision))
        return from_json(WorkOutcome, entry.value)

    def _take(self, change: KeyValueChange) -> int:
        outcomes = self._outcomes.setdefault(change.key.partition(".")[0], {})
        revision, _ = outcomes.get(change.key, (0, None))
        if change.revision >= revision:
            entry = None
            if change.value is not None:
                entry = KeyValueEntry(key=change.key, value=change.value, revision=change.revision)
            outcome = _loaded(entry)
            if outcome is not None:
                outcomes[change.key] = (change.revision, outcome)
            else:
                outcomes.pop(change.key, None)
        # Older outcomes are in the bucket, where `get` and `rate` find them.
        if len(outcomes) > MAX_CONSIDERED * 1.2:
            for key, _ in sorted(outcomes.items(), key=lambda item: _age(item[1][1]))[:-MAX_CONSIDERED]:
                del outcomes[key]
        return change.revision

    def _masked(self, outcome: WorkOutcome) -> WorkOutcome:
        texts = {name: self._clean(getattr(outcome, name)) for name in _TEXTS}
        return replace(
            outcome,
            **texts,  # pyrefly: ignore[bad-argument-type]
            agents_used=tuple(map(self._clean, outcome.agents_used)),
            metadata={self._clean(name): self._clean(value) for name, value in outcome.metadata.items()},
        )

    def _clean(self, text: str) -> str:
        return self._mask(well_formed(text))

    def _at(self) -> str:
        return self._now().isoformat()


def _age(outcome: WorkOutcome) -> tuple[str, str]:
    """The sort key of outcomes, the oldest first."""
    return outcome.ended_at, outcome.subject_id


def _unknown(subject_id: str) -> NotFound:
    return NotFound(
        f"no outcome of {subject_id[:64]!r} is known",
        field="subject_id",
        hint="it is recorded when the execution has ended",
    )


def _loaded(entry: KeyValueEntry | None) -> WorkOutcome | None:
    """The stored outcome; None if there is none, or it is unreadable."""
    if entry is None:
        return None
    try:
        return from_json(WorkOutcome, entry.value)
    except ValueError as error:
        # An unreadable outcome must not hide the others.
        _log.error("learning.unreadable_outcome", key=entry.key, reason=str(error)[:300])
        return None


def _key(tenant: str, subject_id: str) -> str:
    return f"{_token(tenant)}.{_token(subject_id)}"


def _token(text: str) -> str:
    """An id as a token of a key; an id with other characters is written in hexadecimal after `=`."""
    if not text or len(text) > 128:
        raise InvalidRequest(f"an id has {len(text)} characters", field="subject_id", hint="1 to 128")
    return text if _TOKEN.fullmatch(text) else f"={utf8(text).hex()}"


def _check(outcome: WorkOutcome) -> None:
    _token(outcome.subject_id)
    _check_rating(outcome.rating, least=0)
    shares = {
        "memory_share": outcome.memory_share,
        "research_share": outcome.research_share,
        "tool_share": outcome.tool_share,
        "evidence": outcome.evidence,
        "approach_ratio": outcome.approach_ratio,
    }
    for field, value in shares.items():
        if not 0.0 <= value <= 1.0:
            raise InvalidRequest(f"{field} is {value:g}", field=field, hint="between 0 and 1")
    if sum((outcome.memory_share, outcome.research_share, outcome.tool_share)) > 1.001:
        raise InvalidRequest("the shares add up to more than 1", field="tool_share")
    for name in _TEXTS:
        check_length(getattr(outcome, name), _MAX_CHARS, field=name)
    check_length(outcome.comment, MAX_COMMENT_CHARS, field="comment")
    check_length(outcome.reason, MAX_REASON_CHARS, field="reason")
    if len(outcome.agents_used) > _MAX_AGENTS:
        raise InvalidRequest(f"{len(outcome.agents_used)} agents", field="agents_used", hint=f"at most {_MAX_AGENTS}")
    for name in outcome.agents_used:
        check_length(name, _MAX_CHARS, field="agents_used")
    check_metadata(outcome.metadata)
    check_cost(outcome.usage)
    if min(outcome.usage.prompt_tokens, outcome.usage.completion_tokens) < 0:
        raise InvalidRequest("a number of tokens is negative", field="usage")
    if outcome.agents < 0 or outcome.duration_ms < 0:
        raise InvalidRequest("a number is negative", field="agents" if outcome.agents < 0 else "duration_ms")


def _check_rating(rating: int, *, least: int) -> None:
    if not least <= rating <= BEST_RATING:
        raise InvalidRequest(f"a rating of {rating}", field="rating", hint=f"from {LEAST_RATING} to {BEST_RATING}")
