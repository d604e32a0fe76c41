"""The floor: the same replies and the same commands with no agent around them."""

from __future__ import annotations

import asyncio
import os
import time

import aiohttp


async def floor_seconds(url: str, *, agents: int, steps: int, command: str) -> float:
    """Wall time for `agents` x `steps` of one completion and one plain `sh` process, as bare as Python does it."""
    slots = asyncio.Semaphore(2 * (os.cpu_count() or 1))
    body = {"model": "scripted", "messages": [{"role": "user", "content": "floor"}]}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one() -> None:
            for _ in range(steps):
                async with session.post(f"{url}/chat/completions", json=body) as reply:
                    await reply.read()
                async with slots:
                    process = await asyncio.create_subprocess_exec(
                        "sh", "-c", command, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
                    )
                    await process.communicate()

        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(agents)))
        return time.perf_counter() - began
