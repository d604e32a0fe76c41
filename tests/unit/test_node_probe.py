"""What a machine says of itself, read."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.fleet_status import GpuStatus
from swe_ai_fleet.runtime import node_load
from swe_ai_fleet.runtime.node_load import NodeProbe, own_memory, read_gpus

TOLD = "0, NVIDIA H100 80GB HBM3, 37, 1024, 81559\n1, Tesla, [N/A], 5, [Not Supported]\nNo devices were found\n"


def test_gpus_are_read_as_far_as_they_can_be() -> None:
    mib = 1 << 20
    h100, tesla = {"index": 0, "name": "NVIDIA H100 80GB HBM3"}, {"index": 1, "name": "Tesla"}
    assert read_gpus(TOLD) == (
        GpuStatus(**h100, utilization_percent=37.0, memory_used=1024 * mib, memory_total=81559 * mib),
        GpuStatus(**tesla, utilization_percent=None, memory_used=5 * mib, memory_total=0),
    )


@given(st.text(alphabet="0123, ²\n[]ainf-e", max_size=80))
def test_whatever_is_printed_reading_it_ends_well(told: str) -> None:
    told += "\n²,x,1,1,1\n3,x,nan,inf,-1"
    assert all(gpu.index >= 0 and gpu.memory_total >= 0 for gpu in read_gpus(told))


async def test_a_driver_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    # The shell dies of the signal alone; its child would keep the pipe open.
    tool.write_text("#!/bin/sh\nsleep 30\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(node_load, "_GPU_SECONDS", 0.2)
    async with asyncio.timeout(5):
        found = await NodeProbe("node").measure()
    assert (found.gpus, found.cpus >= 1) == ((), True)


async def test_this_machine_is_measured_and_soon_after_told_from_memory() -> None:
    probe = NodeProbe("node")
    first = await probe.measure()
    assert first is await probe.measure()
    assert first.cpu_percent is not None and first.memory_used is not None
    assert first.cpus >= 1 and 0 <= first.cpu_percent <= 100
    assert 0 < first.memory_used < first.memory_total
    assert own_memory() == pytest.approx(own_memory(), rel=0.5)
