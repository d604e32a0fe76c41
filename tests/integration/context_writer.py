"""Writes tasks into a story until it is killed; each id stands on standard output once the task is acknowledged."""

from __future__ import annotations

import asyncio
import sys

from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.context.book import ContextBook
from swe_ai_fleet.domain.context import StoryTask, WorkRecord


async def main(url: str, token: str, tenant: str) -> None:
    async with (
        JetStream.connect(url, credentials=Credentials(token=token)) as jetstream,
        ContextBook(jetstream.changes(), mask=lambda text: text) as book,
    ):
        for number in range(100_000):
            name = f"T-{number}"
            await book.create_task(tenant, StoryTask(task_id=name, story_id=f"S-{number % 4}", title="t"))
            await book.record_work(tenant, WorkRecord(execution_id=f"e-{number}", task_id=name))
            print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
