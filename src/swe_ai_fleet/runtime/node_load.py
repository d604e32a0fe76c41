"""The load of a node: processors and memory from /proc, GPUs from nvidia-smi, calls to model servers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from swe_ai_fleet.adapters.model_pool import ModelPool
from swe_ai_fleet.adapters.model_pool.load import Circuit
from swe_ai_fleet.domain.fleet_status import EndpointUse, GpuStatus, HostReport, MachineStatus
from swe_ai_fleet.domain.json_values import number_in
from swe_ai_fleet.ports import ChatModel

_FRESH_SECONDS = 3.0
_FIRST_LOOK_SECONDS = 0.2
_GPU_SECONDS = 3.0
_END_SECONDS = 0.5
_GPU_FIELDS = "index,name,utilization.gpu,memory.used,memory.total"
_MOST_GPUS = 64
_MEBIBYTE = 1 << 20


async def host_report(probe: NodeProbe, models: Mapping[str, ChatModel]) -> HostReport:
    """The load of this process and its machine, and its running calls at model servers in all profiles' pools."""
    pools = {id(model): model for model in models.values() if isinstance(model, ModelPool)}.values()
    endpoints = added_up(
        EndpointUse(
            url=endpoint.name,
            in_flight=endpoint.in_flight,
            sessions=endpoint.sessions,
            last_fault=endpoint.last_fault,
            open_circuits=int(endpoint.circuit is Circuit.OPEN),
        )
        for pool in pools
        for endpoint in pool.status().endpoints
    )
    waiting = sum(pool.status().waiting for pool in pools)
    return HostReport(node=await probe.measure(), memory=_own_memory(), endpoints=endpoints, waiting=waiting)


def added_up(uses: Iterable[EndpointUse]) -> tuple[EndpointUse, ...]:
    """The uses summed by URL."""
    sums: dict[str, EndpointUse] = {}
    for use in uses:
        sum_so_far = sums.get(use.url, EndpointUse(url=use.url, in_flight=0, sessions=0))
        sums[use.url] = EndpointUse(
            url=use.url,
            in_flight=sum_so_far.in_flight + use.in_flight,
            sessions=sum_so_far.sessions + use.sessions,
            last_fault=sum_so_far.last_fault or use.last_fault,
            open_circuits=sum_so_far.open_circuits + use.open_circuits,
        )
    return tuple(sums.values())


class NodeProbe:
    """Measures this process's machine; a recent measurement is returned again."""

    def __init__(self, node_id: str = "") -> None:
        self._node_id = node_id
        self._times: tuple[int, int] | None = None
        self._measured_at = float("-inf")
        self._last: MachineStatus | None = None
        self._measuring = asyncio.Lock()
        self._nvidia = shutil.which("nvidia-smi") or ""

    async def measure(self) -> MachineStatus:
        """The machine now, at most 3 seconds old. Takes a fifth of a second the first time."""
        async with self._measuring:
            if self._last is None or time.monotonic() - self._measured_at > _FRESH_SECONDS:
                self._last = await self._measure()
                self._measured_at = time.monotonic()
            return self._last

    async def _measure(self) -> MachineStatus:
        if self._times is None:
            self._times = _processor_times()
            await asyncio.sleep(_FIRST_LOOK_SECONDS)
        now, then = _processor_times(), self._times
        self._times = now
        busy = None
        if now is not None and then is not None and now[1] > then[1]:
            busy = min(100.0, max(0.0, 100 * (now[0] - then[0]) / (now[1] - then[1])))
        total, used = _memory()
        gpus = await self._gpus()
        return MachineStatus(
            node_id=self._node_id,
            name=socket.gethostname(),
            cpus=os.cpu_count() or 0,
            cpu_percent=busy,
            memory_total=total,
            memory_used=used,
            gpu_count=len(gpus),
            gpus=gpus,
        )

    async def _gpus(self) -> tuple[GpuStatus, ...]:
        if not self._nvidia:
            return ()
        argv = (self._nvidia, f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits")
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_GPU_SECONDS):
                output, _ = await process.communicate()
        except TimeoutError:
            output = b""
        finally:
            if process.returncode is None:
                # The whole session: a wrapper's child would keep the pipe open.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.wait([asyncio.create_task(process.wait())], timeout=_END_SECONDS)
                if process.returncode is None:
                    # It hangs in the driver, where no signal reaches it; the next one would hang as well.
                    self._nvidia = ""
        return read_gpus(output.decode(errors="replace"))


def read_gpus(output: str) -> tuple[GpuStatus, ...]:
    """The GPUs in nvidia-smi's CSV without units; malformed lines are left out."""
    gpu_statuses: list[GpuStatus] = []
    for line in output.splitlines()[:_MOST_GPUS]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_GPU_FIELDS.split(",")) or not (cells[0].isascii() and cells[0].isdecimal()):
            continue
        utilization, used, total = (number_in(cell, 0, 1e15) for cell in cells[2:])
        gpu_statuses.append(
            GpuStatus(
                index=int(cells[0]),
                name=cells[1],
                utilization_percent=utilization,
                memory_used=int((used or 0) * _MEBIBYTE),
                memory_total=int((total or 0) * _MEBIBYTE),
            )
        )
    return tuple(gpu_statuses)


def _own_memory() -> int:
    """The resident memory of this process, in bytes; 0 where it is unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def ray_node() -> str:
    """Ray's id of this process's node; empty outside of Ray."""
    import ray

    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def _processor_times() -> tuple[int, int] | None:
    """(busy, all) ticks of all processors since the start."""
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0].split()
        # user nice system idle iowait irq softirq steal; guest times are in user already.
        ticks = [int(word) for word in first[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
    except (OSError, ValueError, IndexError):
        return None


def _memory() -> tuple[int, int | None]:
    """(total, used) in bytes: used is what is not available."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        return sizes["MemTotal"], sizes["MemTotal"] - sizes["MemAvailable"]
    except (OSError, ValueError, IndexError, KeyError):
        return 0, None
