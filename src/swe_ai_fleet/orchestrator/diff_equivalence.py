"""Equivalence of diffs: two are equal once the places in which patches of one change differ are left out."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from swe_ai_fleet.domain.candidate import Candidate
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.ports import BlobStore

MAX_COMPARED_BYTES = 4 * 1024 * 1024
"""A larger patch is compared byte by byte only."""
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_FILE = b"diff --git "
_BINARY = (b"GIT binary patch", b"Binary files ")
_INDEX = b"index "
_NOISE = (b"similarity index ", b"dissimilarity index ", b"--- ", b"+++ ")
_BLANK = (b"", b"\r")


def diff_key(candidate: Candidate) -> str:
    """Equal for candidates that hand in the same diff, byte for byte; their evidence is the same."""
    return candidate.artifacts.patch.digest if candidate.artifacts.patch else ""


async def behaviour_keys(candidates: Iterable[Candidate], blobs: BlobStore) -> dict[str, str]:
    """By candidate id a key, equal for diffs that are the same change of the same commit; for `rank` and `vote`.

    What does not count is said at `normalised`. A patch that is gone or not in git's form has the key of its bytes.
    Call it before ranking, with the store that has the patches; each distinct one is read once. Raises Unavailable.
    """
    by_id = {candidate.candidate_id: candidate for candidate in candidates}
    patches = {diff_key(candidate): candidate.artifacts.patch for candidate in by_id.values()}
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
    return {name: keys[diff_key(candidate)] for name, candidate in by_id.items()}


def normalised(patch: bytes) -> bytes | None:
    """A form that two patches of one commit share if they make the same change; None where it is no git patch.

    Left out are the order of files, what hunks they are cut into and their context, new-side line numbers, digests of
    contents, blank lines, and spaces and tabs at the ends of lines. Where in the old file a line goes *does* count:
    the same line in two functions is two changes. The comparison is textual, so equal forms mean equal files but for
    blanks, while equal changes that git aligns differently may keep forms of their own. Linear in the patch.

    Voting over patches normalised in this manner is how Agentless selects one (Xia et al., 2024, arXiv:2407.01489).
    """
    files: list[bytes] = []
    current: _File | None = None
    # Of hunks, so many lines of the old and the new side are still to come.
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
    # The old line that is being read, and the last one before the run of changes that is no blank.
    _at: int = 0
    _anchor: int = 0
    _removed: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    _added: list[bytes] = field(default_factory=list[bytes])

    def header(self, line: bytes) -> None:
        """What is said of the file as a whole; of a binary one everything."""
        self.binary = self.binary or line.startswith(_BINARY)
        if line.startswith(_INDEX) and not self.binary:
            self.contents = line
        elif self.binary or (line and not line.startswith(_NOISE)):
            self.headers.append(line)

    def hunk(self, start: int, *, empty: bool) -> None:
        """A hunk begins at an old line; an empty old side begins behind it."""
        self._close()
        self._at = start + empty
        self._anchor = self._at - 1

    def line(self, line: bytes) -> None:
        """One line of a hunk. A blank one neither is a change nor ends a run of them."""
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
        """What the part comes to; empty where nothing but blanks changes."""
        self._close()
        if not self.headers and not self.edits:
            return b""
        contents = self.contents if self.binary else b""
        return repr((self.name, contents, self.headers, self.edits)).encode()

    def _close(self) -> None:
        """End a run of changes. What both sides begin or end with is no change: git saw blanks at its line's end."""
        removed, added, anchor = self._removed, self._added, self._anchor
        first = 0
        while first < min(len(removed), len(added)) and removed[first][1] == added[first]:
            anchor = removed[first][0]
            first += 1
        last = 0
        while last < min(len(removed), len(added)) - first and removed[-1 - last][1] == added[-1 - last]:
            last += 1
        removed_texts = [text for _, text in removed[first : len(removed) - last]]
        come = added[first : len(added) - last]
        if removed_texts or come:
            self.edits.append(repr((anchor, removed_texts, come)).encode())
        self._removed, self._added = [], []
