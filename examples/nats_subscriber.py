"""A subscriber on NATS: a line for each result, those of the past too, each once however often it is started.

python examples/nats_subscriber.py nats://127.0.0.1:4222 TOKEN [COUNT]

`<home>/fleet.json` of a running fleet has the URL and the token of its own NATS server (`nats_url`, `nats_token`). With
COUNT it ends after so many. The nkey of a tenant's account has no JetStream: subscribe to `agent.results.>` without a
stream there, and hear what comes while you listen. `result_subject` in python_client.py is the subject of one task.
"""

import asyncio
import json
import sys

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy


async def main(url: str, token: str, count: int) -> None:
    connection = await nats.connect(url, token=token)
    stream = connection.jetstream()
    # A durable consumer: NATS remembers what this subscriber has acknowledged, over restarts of either.
    results = await stream.pull_subscribe(
        "agent.results.>",
        durable="example-subscriber",
        stream="AGENT_RESULTS",
        config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_wait=30),
    )
    heard = 0
    try:
        while count == 0 or heard < count:
            try:
                messages = await results.fetch(10, timeout=5)
            except nats.errors.TimeoutError:
                continue
            for message in messages:
                result = json.loads(message.data)
                if result["kind"] == "execution":
                    print(f"{result['task_id']} {result['status']} {result['execution_id']}", flush=True)
                    heard += 1
                await message.ack()
    finally:
        await connection.close()


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) == 4 else 0))
