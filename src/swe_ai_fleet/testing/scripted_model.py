"""Serve a script: `python -m swe_ai_fleet.testing.scripted_model SCRIPT.json --port 8000` prints its URL first."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

from swe_ai_fleet.testing.model_server import ScriptedModelServer
from swe_ai_fleet.testing.script import Script

__all__ = ["ScriptedModelServer", "main"]


async def _serve(server: ScriptedModelServer) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with server:
        print(server.url, flush=True)
        await stop.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGINT or SIGTERM. A script that cannot be read ends it with status 2."""
    parser = argparse.ArgumentParser(prog="scripted_model", description="Serve scripted replies.")
    parser.add_argument("script", type=Path, help="a script file, see Script.from_json")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--model", default="scripted", help="the name that /v1/models gives")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each reply")
    parser.add_argument("--max-model-len", type=int, default=131_072, help="tokens")
    options = parser.parse_args(arguments)
    try:
        script = Script.from_json(options.script)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    server = ScriptedModelServer(
        script,
        model=options.model,
        host=options.host,
        port=options.port,
        latency_seconds=options.latency,
        max_model_len=options.max_model_len,
    )
    asyncio.run(_serve(server))


if __name__ == "__main__":
    main()
