"""How a part that the fleet stands on is doing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ComponentState(StrEnum):
    UP = "up"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One dependency as it answers now. `message` gives a fault's cause and its mend; latency in milliseconds."""

    name: str
    state: ComponentState
    message: str = ""
    version: str = ""
    latency_ms: float = 0.0
