"""The sandbox of a node, from settings."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from swe_ai_fleet.sandbox import CpuSlots, Rung, Sandbox, SandboxPolicy, choose_rung
from swe_ai_fleet.settings import Settings, listed, on_loopback

SLOTS_PER_CPU = 2


async def with_rung(settings: Settings) -> Settings:
    """The settings with the rung that works on this node in the place of `auto`. Raises PreconditionFailed."""
    return settings.model_copy(update={"sandbox": str(await choose_rung(settings.sandbox))})


def make_sandbox(settings: Settings) -> Sandbox:
    """The sandbox of this node. Whether the machine offers the wanted rung shows with the first command."""
    count = settings.cpu_slots or SLOTS_PER_CPU * (os.cpu_count() or 1)
    return Sandbox(sandbox_policy(settings), CpuSlots(settings.home / "slots", count))


def sandbox_policy(settings: Settings) -> SandboxPolicy:
    """The rung and the limits of every sandbox of this node. Where `auto` was not tried out it means bubblewrap."""
    rung = Rung.BUBBLEWRAP if settings.sandbox == "auto" else Rung(settings.sandbox)
    return SandboxPolicy(
        rung=rung,
        max_processes=settings.max_processes,
        max_cpus=settings.max_cpus,
        max_disk_bytes=settings.max_disk_bytes,
        reserved_ports=_own_ports(settings),
    )


def _own_ports(settings: Settings) -> frozenset[int]:
    """The ports of this machine at which the fleet listens or asks, so that no command waits there in its place."""
    asked = (
        *(settings.nats_url, settings.ray_address, settings.model_url, settings.embeddings_url),
        *(settings.orchestrator_url, settings.context_url),
    )
    urls = [urlsplit(url if "://" in url else f"//{url}") for text in asked for url in listed(text)]
    ports = [url.port or 0 for url in urls if on_loopback(f"{url.hostname}:0")]
    listening = (
        *(settings.listen, settings.context_address, settings.http_listen),
        *(settings.metrics_listen, settings.probe_listen),
    )
    ports += [int(port) for address in listening if (port := address.rpartition(":")[2]).isdecimal()]
    return frozenset(ports) - {0}
