"""What a fleet holds at one moment: memory, descriptors, processes, files, streams."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from labs.soak.stage import Soaked, fleet_processes
from swe_ai_fleet.adapters.jetstream.connection import Connection
from tests.processes import title

FOR_EVER = ("CONTEXT_CHANGES", "KV_agent-outcomes", "KV_agent-memories", "KV_councils", "KV_agent-webhooks")
"""Kept on purpose however old: what is known, and what was set up."""
_TIMEOUT = 20.0
_COLLECTED = re.compile(rb"^gc .* \d+->\d+->(\d+) MB", re.MULTILINE)
_LAST_COLLECTIONS, _TAIL_BYTES = 9, 4096


def process_figures(soaked: Soaked) -> dict[str, float]:
    """Of the fleet's processes: their own memory (USS) in MiB, open descriptors, threads, how many there are.

    The memory of nats-server is told apart: it goes with what its streams hold, and has bounds of its own.
    Their share of common pages (PSS) would grow whenever other programs on the machine that use the same ones end.
    """
    figures = dict.fromkeys(("memory_mib", "orchestrator_mib", "nats_mib", "agents_mib", "ray_mib"), 0.0)
    figures |= dict.fromkeys(("descriptors", "threads", "processes", "sandboxes"), 0)
    for pid in fleet_processes(soaked):
        try:
            process = psutil.Process(pid)
            called = title(process)
            own = process.memory_full_info().uss / 2**20
            descriptors, threads = process.num_fds(), process.num_threads()
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied, FileNotFoundError):
            continue
        figures["nats_mib" if called == "nats-server" else "memory_mib"] += own
        figures["descriptors"] += descriptors
        figures["threads"] += threads
        figures["processes"] += 1
        figures["sandboxes"] += called == "bwrap"
        if pid == soaked.fleet.pid:
            figures["orchestrator_mib"] += own
        elif called.startswith("ray::AgentHost"):
            figures["agents_mib"] += own
        elif called.startswith("ray") or called in ("gcs_server", "raylet"):
            figures["ray_mib"] += own
    return figures


def file_figures(soaked: Soaked) -> dict[str, float]:
    """Of the fleet's home: clones, and files and MiB apart from NATS and Ray, and theirs."""
    home = soaked.fleet.home
    figures: dict[str, float] = {"workspaces": len(soaked.fleet.workspaces)}
    figures["files"], figures["files_mib"] = _size(home, without=("nats", "ray"))
    figures["nats_files"], figures["nats_disk_mib"] = _size(home / "nats")
    if live := _live_mib(home / "nats" / "nats.log"):
        figures["nats_live_mib"] = live
    for place in ray_places(soaked):
        figures["ray_files"], figures["ray_disk_mib"] = _size(place)
    return figures


def _live_mib(log: Path) -> float:
    """What of its heap nats-server still used after its last collections: their median; 0 before the first."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            found = _COLLECTED.findall(file.read())
    except FileNotFoundError:
        return 0.0
    return float(median(int(one) for one in found[-_LAST_COLLECTIONS:])) if found else 0.0


def ray_places(soaked: Soaked) -> Iterable[Path]:
    """Where Ray keeps its session, as the command line of one of its processes says."""
    for process in soaked.fleet.descendants():
        try:
            words = process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        for word in words:
            if word.startswith(("--temp_dir=", "--temp-dir=")):
                return [Path(word.partition("=")[2])]
    return []


async def stream_figures(connection: Connection) -> dict[str, float]:
    """Of JetStream: messages and MiB of what gets old, consumers, and messages and MiB of what is kept for ever."""
    figures = dict.fromkeys(("messages", "stream_mib", "consumers", "kept_messages", "kept_mib"), 0.0)
    for one in (await connection.api("STREAM.LIST", {}, timeout=_TIMEOUT)).get("streams") or ():
        name, state = str(one["config"]["name"]), _state(one)
        kept = name in FOR_EVER
        figures["kept_messages" if kept else "messages"] += state["messages"]
        figures["kept_mib" if kept else "stream_mib"] += state["bytes"] / 2**20
        figures["consumers"] += state["consumer_count"]
        figures[f"stream {name}"] = state["messages"]
    return figures


def _state(stream: dict[str, Any]) -> dict[str, int]:
    return stream["state"]


def _size(place: Path, without: tuple[str, ...] = ()) -> tuple[float, float]:
    files, size = 0, 0
    for directory, names, found in os.walk(place):
        if Path(directory) == place:
            names[:] = [name for name in names if name not in without]
        for name in found:
            try:
                size += os.lstat(os.path.join(directory, name)).st_size
            except OSError:
                continue
            files += 1
    return files, size / 2**20
