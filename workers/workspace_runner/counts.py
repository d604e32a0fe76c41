"""What a runner did, in numbers that a metrics exporter reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Counts:
    """Grows only.

    Attributes:
        started: Jobs begun, by kind.
        adopted: Jobs that were running already when this runner came to them.
        settled: Jobs that told their outcome, by kind.
        failed: Jobs that ended without a word, by reason.
        wait_seconds: Time between a message's arrival here and its job's start, added up.
        run_seconds: Time that jobs took, added up.
    """

    started: Counter[str] = field(default_factory=Counter[str])
    adopted: int = 0
    settled: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])
    wait_seconds: float = 0.0
    run_seconds: float = 0.0

    def figures(self) -> Mapping[str, float | Mapping[str, int]]:
        """All of it, by name."""
        return {
            "adopted": self.adopted,
            "wait_seconds": self.wait_seconds,
            "run_seconds": self.run_seconds,
            "started": dict(self.started),
            "settled": dict(self.settled),
            "failed": dict(self.failed),
        }
