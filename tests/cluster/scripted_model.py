"""`python -m tests.cluster.scripted_model`: the model of the tests that run inside a cluster."""

from __future__ import annotations

import asyncio
import signal

from swe_ai_fleet.testing import ScriptedModelServer
from tests.scripts import SCRIPT

PORT = 8000


async def serve(port: int = PORT) -> None:
    """Serve until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with ScriptedModelServer(SCRIPT, port=port, host="0.0.0.0"):
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(serve())
