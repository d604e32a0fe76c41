"""A repository at one commit in a file, for those who can't reach it where it is."""

from __future__ import annotations

from dataclasses import dataclass

BUNDLE_BRANCH = "base"
"""The one branch of such a bundle; it stands at its commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryBundle:
    """A git bundle with the branch `base` at `commit`, and with everything that it stands on.

    Where it is `without_history`, `commit` has the same files as the commit that was asked for, and no parents.
    """

    commit: str
    data: bytes
    without_history: bool = False
