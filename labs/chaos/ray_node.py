"""One node of a Ray cluster on loopback: `python -m labs.chaos.ray_node --directory D (--head | --address A)`.

Prints the cluster's address once it runs, and ends with SIGTERM, or without a word when it is killed.
"""

from __future__ import annotations

import argparse
import signal
import threading

HOST = "127.0.0.2"
"""Loopback, but by a name that Ray does not take for this machine only, and replace by its outer address."""
OBJECT_STORE_BYTES = 80 * 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="chaos.ray_node")
    parser.add_argument("--directory", required=True)
    parser.add_argument("--address", default="")
    parser.add_argument("--port", type=int, default=0, help="of the head")
    options = parser.parse_args()

    from ray._private.node import Node
    from ray._private.parameter import RayParams

    parameters = RayParams(
        node_ip_address=HOST,
        num_cpus=1,
        num_gpus=0,
        object_store_memory=OBJECT_STORE_BYTES,
        min_worker_port=0,
        max_worker_port=0,
        include_dashboard=False,
        include_log_monitor=False,
        temp_dir=options.directory,
    )
    if options.address:
        parameters.update_if_absent(gcs_address=options.address, node_manager_port=0)
        # Another one than the head's.
        parameters.dashboard_agent_listen_port = None
    else:
        parameters.update_if_absent(gcs_server_port=options.port)
    node = Node(parameters, head=not options.address, shutdown_at_exit=False, spawn_reaper=False)
    print(node.gcs_address, flush=True)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()
    node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)


if __name__ == "__main__":
    main()
