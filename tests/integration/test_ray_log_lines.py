"""What hosts of agents log on a Ray node is that node's output, with the variables of its Pod."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DRIVER = """
import sys, ray
ray.init(sys.argv[1], log_to_driver=False, namespace="n")
class Host:
    def __init__(self):
        from swe_ai_fleet.telemetry import configure_logging
        configure_logging("info", "auto")
    def work(self):
        import structlog
        structlog.get_logger().info("worked", execution_id="e1")
ray.get(ray.remote(Host).options(num_cpus=0).remote().work.remote())
"""


def _variables() -> dict[str, str]:
    cluster: dict[str, Any] = next(yaml.safe_load_all((ROOT / "deploy/k8s/base/ray.yaml").read_text()))
    [container] = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    return {one["name"]: one["value"] for one in container["env"] if one["name"].startswith("RAY_") and "value" in one}


@pytest.mark.slow
async def test_a_hosts_line_is_in_the_output_of_its_node() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    variables = {**os.environ, **_variables(), "RAY_AUTH_MODE": "disabled"}
    ray = Path(sys.executable).with_name("ray")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        node = await asyncio.create_subprocess_exec(
            *(str(ray), "start", "--head", "--block", "--disable-usage-stats", "--include-dashboard=false"),
            *("--node-ip-address=127.0.0.1", f"--port={address.partition(':')[2]}", f"--temp-dir={directory}"),
            *("--num-cpus=1", "--object-store-memory=80000000"),
            env=variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert node.stdout is not None
        try:
            async with asyncio.timeout(120):
                while b"--block" not in await node.stdout.readline():
                    pass
                driver = await asyncio.create_subprocess_exec(sys.executable, "-c", DRIVER, address, env=variables)
                assert await driver.wait() == 0
                while b'"worked"' not in (line := await node.stdout.readline()):
                    assert line, "the node has ended"
            assert b'"execution_id": "e1"' in line
        finally:
            node.send_signal(signal.SIGTERM)
            await node.wait()
