"""A process that remembers without an end and says what was acknowledged: `python -m tests.memory_writer …`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.adapters.memory_index import open_memory_index
from swe_ai_fleet.domain.memory import Memory
from swe_ai_fleet.memory import MemoryManager
from swe_ai_fleet.memory.shared import SharedMemories
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.secrets import Secrets
from tests.memory_parts import WordEmbedder

NAMESPACE = "repository:writer"


def fact(number: int) -> str:
    """The fact of a number."""
    return f"Widget w{number} lies in drawer d{7 * number}."


async def shared(url: str, token: str, bucket: str, home: str, first: int) -> None:
    """Remember in a bucket, from a number on."""
    async with (
        JetStream.connect(url, credentials=Credentials(token=token), patience=10.0) as jetstream,
        open_memory_index("", Path(home)) as index,
        SharedMemories.open(await jetstream.bucket(bucket), index, mask=Secrets(), embedder=WordEmbedder()) as memories,
    ):
        for number in range(first, first + 1_000_000):
            await memories.remember(Memory(namespace=NAMESPACE, text=fact(number)))
            print(number, flush=True)


async def library(home: str, first: int) -> None:
    """Remember in files, from a number on."""
    async with MemoryManager("writer", 10, settings=Settings(home=Path(home), embeddings="none")) as manager:
        for number in range(first, first + 1_000_000):
            await manager.add_fact(fact(number))
            await manager.add_interaction(f"q{number}", f"a{number}")
            print(number, flush=True)


if __name__ == "__main__":
    kind, *arguments, start = sys.argv[1:]
    if kind == "shared":
        url, token, bucket, home = arguments
        asyncio.run(shared(url, token, bucket, home, int(start)))
    else:
        asyncio.run(library(arguments[0], int(start)))
