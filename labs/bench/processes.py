"""What a tree of processes costs: proportional memory and CPU seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psutil

SAMPLE_SECONDS = 2.0


@dataclass(kw_only=True)
class Cost:
    """Peak of the summed PSS in MiB, CPU seconds (user and system, ended children included)."""

    peak_pss_mib: float = 0.0
    cpu_seconds: float = 0.0


@asynccontextmanager
async def measured(excluded: int) -> AsyncGenerator[Cost]:
    """Measure this process and everything below it, but for the process `excluded` (the model server)."""
    cost = Cost()
    before = _cpu_seconds(excluded)
    sampler = asyncio.create_task(_sample(cost, excluded))
    try:
        yield cost
    finally:
        sampler.cancel()
        await asyncio.gather(sampler, return_exceptions=True)
        cost.cpu_seconds = _cpu_seconds(excluded) - before


async def _sample(cost: Cost, excluded: int) -> None:
    while True:
        cost.peak_pss_mib = max(cost.peak_pss_mib, await asyncio.to_thread(_pss_mib, excluded))
        await asyncio.sleep(SAMPLE_SECONDS)


def _tree(excluded: int) -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *(child for child in me.children(recursive=True) if child.pid != excluded)]


def _pss_mib(excluded: int) -> float:
    total = 0
    for process in _tree(excluded):
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            continue
    return total / 2**20


def _cpu_seconds(excluded: int) -> float:
    total = 0.0
    for process in _tree(excluded):
        try:
            times = process.cpu_times()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
