"""Verdicts: what evidence says of a change."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What was shown of a change, by something that ran.

    `verified`: a test or check fails without the change, repeatedly, passes with it, and nothing that worked broke.
    `unverified`: nothing was shown, neither for nor against it. `refuted`: something that ran shows that it does not
    work, it cannot be applied, or it breaks a rule.
    """

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    REFUTED = "refuted"

    @property
    def rank(self) -> int:
        """2 for verified, 1 for unverified, 0 for refuted."""
        return _RANKS[self]


_RANKS = {Verdict.VERIFIED: 2, Verdict.UNVERIFIED: 1, Verdict.REFUTED: 0}
