"""What a tree of processes costs: proportional memory and CPU seconds. What looks at memory is a process of its own.

`python -m labs.bench.processes ROOT EXCLUDED…` prints the peak of a tree's memory, in MiB, at the end of its input.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psutil

SAMPLE_SECONDS = 2.0
_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)


@dataclass(kw_only=True)
class Cost:
    """Peak of the summed PSS in MiB, CPU seconds (user and system, ended children included)."""

    peak_pss_mib: float = 0.0
    cpu_seconds: float = 0.0


@asynccontextmanager
async def measured(excluded: int) -> AsyncGenerator[Cost]:
    """Measure this process and everything below it, but for the process `excluded` (the model server)."""
    cost = Cost()
    sampler = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "labs.bench.processes", str(os.getpid()), str(excluded)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert sampler.stdin is not None
    others = (excluded, sampler.pid)
    before = _cpu_seconds(others)
    try:
        yield cost
        cost.cpu_seconds = _cpu_seconds(others) - before
    finally:
        sampler.stdin.close()
        peak, _ = await sampler.communicate()
        cost.peak_pss_mib = float(peak or 0)


def _sample(root: int, excluded: Collection[int]) -> float:
    """The peak until standard input ends."""
    peak = 0.0
    while True:
        peak = max(peak, _pss_mib(root, excluded))
        if select.select([sys.stdin], [], [], SAMPLE_SECONDS)[0]:
            return peak


def _tree(root: int, excluded: Collection[int]) -> list[psutil.Process]:
    first = psutil.Process(root)
    return [first, *(child for child in first.children(recursive=True) if child.pid not in excluded)]


def _pss_mib(root: int, excluded: Collection[int]) -> float:
    total = 0
    for process in _tree(root, excluded):
        try:
            total += process.memory_full_info().pss
        except _GONE:
            continue
    return total / 2**20


def _cpu_seconds(excluded: Collection[int]) -> float:
    total = 0.0
    for process in _tree(os.getpid(), excluded):
        try:
            times = process.cpu_times()
        except _GONE:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


if __name__ == "__main__":
    root, *others = map(int, sys.argv[1:])
    print(_sample(root, {*others, os.getpid()}))
