"""The names that servers are called by, which their certificates are for."""

from __future__ import annotations

from collections.abc import Sequence

LOOPBACK = ("localhost", "127.0.0.1", "::1")
NAMESPACE = "fleet"


def server_names(server: str, hosts: Sequence[str]) -> tuple[str, ...]:
    """Those of a server: this machine's, its service's in a cluster, and the hosts that somebody names."""
    service = f"fleet-{server}"
    names = [*LOOPBACK, *hosts, service, *_in_cluster(service)]
    if server == "nats":
        # Servers of a cluster call each other by their Pods.
        names += [f"*.{name}" for name in _in_cluster("fleet-nats-peers")]
    return tuple(dict.fromkeys(names))


def _in_cluster(service: str) -> tuple[str, ...]:
    own = f"{service}.{NAMESPACE}"
    return own, f"{own}.svc", f"{own}.svc.cluster.local"
