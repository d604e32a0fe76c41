"""What is killed when: made from a seed alone, so that a run can be had again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Victim(StrEnum):
    """What is killed with -9."""

    ORCHESTRATOR = "orchestrator"
    BOTH = "both orchestrators"
    ACTOR = "actor"
    WORKER = "ray worker"
    NATS = "nats-server"
    MODEL = "model server"
    NODE = "ray node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One kill: once so many executions of the phase have ended, and so many seconds later.

    `down_seconds` pass before whoever keeps the process alive starts it again; `dice` chooses which of several.
    """

    victim: Victim
    after: int
    delay_seconds: float
    down_seconds: float
    dice: int


_DOWN: Mapping[Victim, tuple[float, float]] = {
    Victim.ORCHESTRATOR: (0.0, 8.0),
    Victim.BOTH: (0.0, 3.0),
    Victim.ACTOR: (0.0, 0.0),
    Victim.WORKER: (0.0, 0.0),
    Victim.NATS: (0.2, 3.0),
    Victim.MODEL: (10.0, 10.0),
    Victim.NODE: (5.0, 15.0),
}


def strikes(seed: int, phase: int, executions: int, victims: Mapping[Victim, int]) -> list[Strike]:
    """The kills of a phase, spread over it at random; each comes while there is still work to hit."""
    dice = random.Random(f"{seed}/{phase}")
    bag = [victim for victim, count in victims.items() for _ in range(count)]
    dice.shuffle(bag)
    last = max(1, round(0.85 * executions))
    moments = sorted(dice.randrange(last) for _ in bag)
    return [
        Strike(
            victim=victim,
            after=after,
            delay_seconds=round(dice.uniform(0.2, 3.0), 2),
            down_seconds=round(dice.uniform(*_DOWN[victim]), 1),
            dice=dice.randrange(1 << 30),
        )
        for victim, after in zip(bag, moments, strict=True)
    ]
