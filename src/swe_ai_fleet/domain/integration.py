"""Integration: patches merged into the integration branch, and commits as bundles for those who can't reach them."""

from __future__ import annotations

from dataclasses import dataclass

from swe_ai_fleet.domain.task import PinnedRepository

BUNDLE_BRANCH = "base"
"""The one branch of such a bundle; it stands at its commit."""
OURS = "integration"
THEIRS = "subtask"
"""What conflict markers call the two sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryBundle:
    """A git bundle with the branch `base` at `commit`, and with everything that it stands on.

    Where it is `without_history`, `commit` has the same files as the commit that was asked for, and no parents.
    """

    commit: str
    data: bytes
    without_history: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """A patch against `base`, to be merged into `head`; the result is a commit on top of `head`.

    `since` is the commit that whoever has the location has too: bundles hold what comes after it. `at` (ISO 8601) is
    the commit's date, so that the same request makes the same commit.
    """

    execution_id: str
    head: PinnedRepository
    base: PinnedRepository
    patch: bytes
    since: str
    message: str
    author_name: str
    author_email: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What a merge came to: `commit`, and a git bundle of what leads to it from `since`.

    Without `conflicts` the commit is the merged result (the head itself where the patch adds nothing to it). With them
    it is a draft for somebody to finish: on top of the head, everything merged that could be, and conflict markers in
    the rest; `conflicts` are its files, `report` says in words what is wrong, `ours` and `theirs` are what both sides
    changed in them since their common commit, as diffs.
    """

    commit: str
    bundle: bytes
    conflicts: tuple[str, ...] = ()
    report: str = ""
    ours: bytes = b""
    theirs: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A commit for those who can't reach it: a patch against an earlier one, and a bundle with a branch at it."""

    patch: bytes
    bundle: bytes
