"""How candidates are put before a judge: in which order, and how much of each."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from string import ascii_uppercase

LETTERS = ascii_uppercase
"""Under these a judge sees candidates; who wrote them, and in which order, it is not told."""


def ballot_order(names: Sequence[str], seed: int, sample: int) -> tuple[str, ...]:
    """The order in which a judge sees candidates in its `sample`-th question, from 1; equal arguments, equal order.

    The first order is shuffled by the seed, each further one begins with the next candidate, and after a whole turn
    they go the other way round: models favour places (Wang et al., 2023, arXiv:2305.17926; Zheng et al., 2023,
    arXiv:2306.05685), so in as many samples as there are candidates each stands in each place once, and a judge that
    always takes the first one has voted for all of them alike.
    """
    shuffled = sorted(names, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    turn, shift = divmod(sample - 1, max(1, len(shuffled)))
    order = (*shuffled[shift:], *shuffled[:shift])
    return order[::-1] if turn % 2 else order


def fair_shares(sizes: Sequence[int], room: int) -> list[int]:
    """How much of each of several texts is shown in so much room: no more than it has, and no long one more than
    another (max-min fairness): what a short one leaves is shared by the others."""
    shares = [0] * len(sizes)
    left = max(0, room)
    for done, at in enumerate(sorted(range(len(sizes)), key=lambda at: sizes[at])):
        shares[at] = min(sizes[at], left // (len(sizes) - done))
        left -= shares[at]
    return shares
