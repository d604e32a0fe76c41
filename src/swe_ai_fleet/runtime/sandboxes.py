"""The sandbox of a node, from settings."""

from __future__ import annotations

import os

from swe_ai_fleet.sandbox import CpuSlots, Rung, Sandbox, SandboxPolicy
from swe_ai_fleet.settings import Settings

SLOTS_PER_CPU = 2


def make_sandbox(settings: Settings) -> Sandbox:
    """The sandbox of this node. Whether the machine offers the wanted rung shows with the first command."""
    count = settings.cpu_slots or SLOTS_PER_CPU * (os.cpu_count() or 1)
    return Sandbox(sandbox_policy(settings), CpuSlots(settings.home / "slots", count))


def sandbox_policy(settings: Settings) -> SandboxPolicy:
    """The rung and the limits of every sandbox of this node."""
    rung = Rung.NONE if settings.sandbox == "none" else Rung.BUBBLEWRAP
    return SandboxPolicy(rung=rung, max_processes=settings.max_processes)
