"""The ranking of candidates: evidence first, then peers and judges, then the smaller diff, then the cheaper run.

`reasons` explains a candidate's rank, `drop_reasons` why one has none. Candidates with equal changes share a place:
`normalised` removes the differences between patches of the same change.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from swe_ai_fleet.domain.candidate import Candidate, CheckReport, CheckResult, ForeignTests, RankedCandidate, Verdict
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.domain.examination import STATEMENT
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.review import Critique, Vote
from swe_ai_fleet.domain.text import shortened
from swe_ai_fleet.orchestrator.score import PARTS, ScoredCandidate, ScorePart, score_candidates
from swe_ai_fleet.ports import BlobStore

_MOST_COMPLAINTS = 5
_MOST_AUTHORS = 3
_MESSAGE_CHARS = 300
_ACCEPTED = {False: "not accepted", True: "accepted"}
REVISED = "replaced by a revision: "
MAX_COMPARED_BYTES = 4 * 1024 * 1024
"""A larger patch is compared byte by byte only."""
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_FILE = b"diff --git "
_BINARY = (b"GIT binary patch", b"Binary files ")
_INDEX = b"index "
_NOISE = (b"similarity index ", b"dissimilarity index ", b"--- ", b"+++ ")
_BLANK = (b"", b"\r")


def reasons(places: Sequence[ScoredCandidate]) -> list[str]:
    """The explanation of each place of a ranking: what speaks for and against it, and the difference that decided.

    The first is compared with the second, every other one with the one above it. Messages of checks are quoted, so
    the text is untrusted.
    """
    explanations: list[str] = []
    for at, place in enumerate(places):
        parts = _facts(place)
        if at:
            above = places[at - 1]
            parts.append(f"behind {above.candidate.candidate_id}: {_apart(place, above, ahead=False)}")
        elif len(places) > 1:
            below = places[1]
            parts.append(f"ahead of {below.candidate.candidate_id}: {_apart(place, below, ahead=True)}")
        explanations.append("; ".join(parts))
    return explanations


def _facts(place: ScoredCandidate) -> list[str]:
    """The facts about a place, the evidence first."""
    if not place.report.results:
        return ["no evidence could be gathered"]
    failed = place.report.failed
    facts = [_complaint(result) for result in failed[:_MOST_COMPLAINTS]]
    if len(failed) > _MOST_COMPLAINTS:
        facts.append(f"and {len(failed) - _MOST_COMPLAINTS} more checks failed")
    if place.report.verdict in (Verdict.VERIFIED, Verdict.UNVERIFIED):
        facts.insert(0, f"{place.report.verdict}: {'; '.join(place.report.reasons)}")
    elif not failed:
        facts.append("every check passed" if place.report.accepted else "no required check could be run")
    if place.report.foreign is not None and place.accepted:
        facts.append(_foreign(place.report.foreign))
    if place.others:
        facts.append(f"{place.size} identical candidates")
    if place.review is not None:
        must_fix = f", {place.must_fix} must-fix reproduced" if place.must_fix else ""
        facts.append(f"reviews {place.review:.2f} from {len(place.reviews)}{must_fix}")
    if place.verifier is not None:
        facts.append(f"verifier {place.verifier:.2f}")
    if votes := _votes(place):
        facts.append(votes)
    facts.append(f"{place.lines} changed lines")
    return facts


def _foreign(foreign: ForeignTests) -> str:
    """The results of others' new tests, in words."""
    if not foreign.asked:
        return "no other author's new tests cover it"
    passed, authors_asked = foreign.by_authors
    probes = f"passes {foreign.probes_passed} of {foreign.probes_asked} probes of {STATEMENT}"
    parts = [probes] if foreign.probes_asked else []
    if passed:
        parts.append(
            f"passes the new tests of {passed} of {authors_asked} other author{'s' if authors_asked > 1 else ''}"
        )
    failing = [(name, count) for name, count in foreign.failing.items() if name != STATEMENT]
    parts += [f"fails {count} new test{'s' if count > 1 else ''} of {name}" for name, count in failing[:_MOST_AUTHORS]]
    if len(failing) > _MOST_AUTHORS:
        parts.append(f"and those of {len(failing) - _MOST_AUTHORS} more")
    return ", ".join(parts)


def _votes(place: ScoredCandidate) -> str:
    ballots = place.ballots
    lost = f"{ballots.unreadable} not counted" if ballots.unreadable else ""
    if not ballots.held:
        return f"no votes, {lost}" if lost else ""
    tally = f"{ballots.won} of {ballots.held} votes{', ' if lost else ''}{lost}"
    return f"the architect's choice ({tally})" if place.values.get(ScorePart.CHOICE) == 1 else tally


def _complaint(result: CheckResult) -> str:
    weight = "" if result.required else " (not required)"
    message = f": {shortened(result.message, _MESSAGE_CHARS)}" if result.message else ""
    return f"{result.name} failed{weight}{message}"


def _apart(own: ScoredCandidate, other: ScoredCandidate, *, ahead: bool) -> str:
    """The difference that decided between two neighbours: the first criterion that differs, own numbers first."""
    if own.tier != other.tier:
        word = other.report.verdict_word
        return f"that one is {word if word != own.report.verdict_word else _ACCEPTED[other.report.accepted]}"
    sign = 1 if ahead else -1
    if own.score != other.score:
        gains = {part: sign * PARTS[part] * (value - other.values.get(part, 0.0)) for part, value in own.values.items()}
        ordered = sorted(gains, key=lambda part: -abs(gains[part]))
        decisive = [_values(part, own, other) for part in ordered if gains[part] > 0]
        contrary = [_values(part, own, other) for part in ordered if gains[part] < 0]
        return ", in spite of ".join(", ".join(parts) for parts in (decisive, contrary) if parts)
    for name, own_value, other_value in (
        ("evidence", f"{own.values[ScorePart.EVIDENCE]:.4f}", f"{other.values[ScorePart.EVIDENCE]:.4f}"),
        ("own tests that fail without the change", str(own.own_tests), str(other.own_tests)),
        ("changed lines", str(own.lines), str(other.lines)),
        ("tokens", str(own.tokens), str(other.tokens)),
    ):
        if own_value != other_value:
            return f"equal scores, {own_value} {name} against {other_value}"
    return "equal in every criterion; ordered by name"


def _values(part: ScorePart, own: ScoredCandidate, other: ScoredCandidate) -> str:
    own_value, other_value = own.values[part], other.values.get(part, 0.0)
    if part is ScorePart.CHOICE:
        return f"{part}" if own_value > other_value else f"{part} of that one"
    digits = 2 if f"{own_value:.2f}" != f"{other_value:.2f}" else 6
    values = (
        "none" if place.opinions.get(part, value) is None else f"{value:.{digits}f}"
        for place, value in ((own, own_value), (other, other_value))
    )
    return f"{part} {' against '.join(values)}"


def rank(
    candidates: Iterable[Candidate],
    reports: Mapping[str, CheckReport],
    *,
    critiques: Iterable[Critique] = (),
    votes: Iterable[Vote] = (),
    behaviours: Mapping[str, str] | None = None,
    scores: Mapping[str, float] | None = None,
    needs_proof: bool = False,
) -> tuple[RankedCandidate, ...]:
    """Candidates from best to worst, one for each behaviour, each with the reason for its place.

    Order: verified, unverified, refuted; then the score (the formula is `ScoredCandidate.score`), then evidence, fewer
    changed lines, fewer tokens, the id; it does not depend on the order of the arguments. Only an accepted candidate
    can win, and opinion counts among accepted ones only.

    Args:
        candidates: The current ones, without superseded and dropped ones.
        reports: The evidence by candidate id, as returned by `Matrix.judged` where candidates were examined; a
            candidate without any ranks last.
        critiques: Those of peers; critiques of candidates that are not ranked are ignored.
        votes: Those of judges; where all are the `ARCHITECT`'s, its choice decides among accepted candidates.
        behaviours: The result of `behaviour_keys`; without it only diffs with equal bytes are duplicates.
        scores: The calibrated scores of a verifier model, from 0 to 1, by candidate id.
        needs_proof: Whether only verified candidates may win.
    """
    places = score_candidates(candidates, reports, critiques, votes, behaviours or {}, scores, needs_proof=needs_proof)
    return tuple(
        RankedCandidate(
            candidate_id=place.candidate.candidate_id,
            rank=number,
            score=round(place.score, 4),
            accepted=place.accepted,
            duplicates=tuple(candidate.candidate_id for candidate in place.others),
            reason=reason,
            evidence=round(place.values[ScorePart.EVIDENCE], 4),
            review=_rounded(place.opinions[ScorePart.REVIEW]),
            votes=_rounded(place.opinions[ScorePart.VOTES]),
            verdict=place.report.verdict,
            tests=_rounded(place.opinions[ScorePart.TESTS]),
            verdict_reasons=() if place.report.foreign is None else place.report.reasons,
            verifier=_rounded(place.opinions[ScorePart.VERIFIER]),
        )
        for number, (place, reason) in enumerate(zip(places, reasons(places), strict=True), start=1)
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def drop_reasons(state: ExecutionState) -> dict[str, str]:
    """Why each candidate that is not ranked was left out, by id: it was dropped, or a revision replaced it."""
    replaced = {
        candidate.revises: f"{REVISED}{candidate.candidate_id}"
        for candidate in state.candidates.values()
        if candidate.revises and candidate.candidate_id in state.judged and candidate.candidate_id not in state.dropped
    }
    return {**replaced, **state.dropped}


async def behaviour_keys(candidates: Iterable[Candidate], blobs: BlobStore) -> dict[str, str]:
    """A key for each candidate id, equal for diffs that are the same change of the same commit; for `rank` and `vote`.

    `normalised` says which differences do not count. A patch that is missing or not in git's form has the key of its
    bytes. Call it before ranking, with the store that has the patches; each distinct one is read once. Raises
    Unavailable.
    """
    by_id = {candidate.candidate_id: candidate for candidate in candidates}
    patches = {candidate.diff_digest: candidate.artifacts.patch for candidate in by_id.values()}
    keys = {"": ""}
    for digest, patch in patches.items():
        if patch is None:
            continue
        keys[digest] = digest
        if patch.size > MAX_COMPARED_BYTES:
            continue
        try:
            content = await blobs.get(patch)
        except NotFound:
            continue
        if (form := await asyncio.to_thread(normalised, content)) is not None:
            keys[digest] = hashlib.sha256(form).hexdigest()
    return {name: keys[candidate.diff_digest] for name, candidate in by_id.items()}


def normalised(patch: bytes) -> bytes | None:
    """A form that two patches of one commit share if they make the same change; None where it is not a git patch.

    Left out are the order of files, what hunks they are cut into and their context, new-side line numbers, digests of
    contents, blank lines, and spaces and tabs at the ends of lines. The position of a line in the old file *does*
    count: the same line in two functions is two changes. The comparison is textual, so equal forms mean equal files
    except for blanks, while equal changes that git aligns differently may have different forms. Linear in the patch.

    Agentless selects a patch by votes over patches normalised in this way (Xia et al., 2024, arXiv:2407.01489).
    """
    files: list[bytes] = []
    current: _File | None = None
    # Lines of the old and the new side that are left in the current hunk.
    old = new = 0
    for line in patch.split(b"\n"):
        if old > 0 or new > 0:
            if current is None or not (line[:1] in (b" ", b"-", b"+", b"\\") or line in _BLANK):
                return None
            old -= line[:1] not in (b"+", b"\\")
            new -= line[:1] not in (b"-", b"\\")
            current.line(line)
        elif line.startswith(_FILE):
            if current is not None:
                files.append(current.form())
            current = _File(line)
        elif current is None:
            if line.strip():
                return None
        elif (hunk := _HUNK.match(line)) is not None and not current.binary:
            old, new = int(hunk[2] or 1), int(hunk[4] or 1)
            current.hunk(int(hunk[1]), empty=not old)
        elif not line.startswith(b"\\"):
            current.header(line)
    if old > 0 or new > 0:
        return None
    if current is not None:
        files.append(current.form())
    return b"\n".join(sorted(form for form in files if form))


@dataclass(slots=True)
class _File:
    """One file's part of a patch, read line by line."""

    name: bytes
    binary: bool = False
    contents: bytes = b""
    headers: list[bytes] = field(default_factory=list[bytes])
    edits: list[bytes] = field(default_factory=list[bytes])
    # The current old line, and the last non-blank one before the current run of changes.
    _at: int = 0
    _anchor: int = 0
    _removed: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    _added: list[bytes] = field(default_factory=list[bytes])

    def header(self, line: bytes) -> None:
        """A header line of the file; every line of a binary one."""
        self.binary = self.binary or line.startswith(_BINARY)
        if line.startswith(_INDEX) and not self.binary:
            self.contents = line
        elif self.binary or (line and not line.startswith(_NOISE)):
            self.headers.append(line)

    def hunk(self, start: int, *, empty: bool) -> None:
        """Start a hunk at an old line; an empty old side starts after it."""
        self._close()
        self._at = start + empty
        self._anchor = self._at - 1

    def line(self, line: bytes) -> None:
        """One line of a hunk. A blank line is not a change and does not end a run of changes."""
        kind, text = line[:1], line[1:].rstrip(b" \t")
        if kind == b"\\":
            return
        blank = text in _BLANK
        if kind == b"+":
            if not blank:
                self._added.append(text)
            return
        if kind == b"-" and not blank:
            self._removed.append((self._at, text))
        elif not blank:
            self._close()
            self._anchor = self._at
        self._at += 1

    def form(self) -> bytes:
        """The normal form of the file's part; empty where only blanks change."""
        self._close()
        if not self.headers and not self.edits:
            return b""
        contents = self.contents if self.binary else b""
        return repr((self.name, contents, self.headers, self.edits)).encode()

    def _close(self) -> None:
        """End a run of changes. Common lines at its start or end are not changes: only their trailing blanks differ."""
        removed, added, anchor = self._removed, self._added, self._anchor
        first = 0
        while first < min(len(removed), len(added)) and removed[first][1] == added[first]:
            anchor = removed[first][0]
            first += 1
        last = 0
        while last < min(len(removed), len(added)) - first and removed[-1 - last][1] == added[-1 - last]:
            last += 1
        removed_texts = [text for _, text in removed[first : len(removed) - last]]
        added_texts = added[first : len(added) - last]
        if removed_texts or added_texts:
            self.edits.append(repr((anchor, removed_texts, added_texts)).encode())
        self._removed, self._added = [], []
