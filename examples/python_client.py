"""A client in Python: hands a task in, follows it, prints the winner's patch.

python examples/python_client.py 127.0.0.1:50055 TOKEN /path/to/repository "Add a test" [TASK_ID]

The token of a fleet on this machine is in `<home>/token`. The modules `fleet.*` come with swe-ai-fleet; elsewhere make
them from proto/ with grpcio-tools. A fleet with TLS wants `grpc.aio.secure_channel`.
"""

import asyncio
import json
import sys
import uuid
from urllib.parse import quote

import grpc.aio

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub


def result_subject(task_id: str, agent_id: str = "") -> str:
    """Where the result of a task comes on NATS, or that of one of its agents; an id is one token, whatever is in it."""
    tokens = [quote(one, safe="").replace(".", "%2E") for one in (task_id, agent_id) if one]
    return ".".join(["agent.results", *tokens])


async def main(address: str, token: str, repository: str, task: str, task_id: str = "") -> int:
    call = {"metadata": (("authorization", f"Bearer {token}"),)}
    async with grpc.aio.insecure_channel(address) as channel:
        fleet = OrchestratorServiceStub(channel)
        request = pb.DeliberateRequest(
            # The same id again is the same execution: a client that crashed asks again and goes on.
            task_id=task_id or f"example-{uuid.uuid4().hex[:8]}",
            task_description=task,
            repo=pb.RepoRef(path=repository),
            num_agents=2,
        )
        accepted = await fleet.SubmitTask(pb.SubmitTaskRequest(deliberate=request), **call)
        print(f"accepted as {accepted.execution_id}", file=sys.stderr)
        print(f"on NATS its result comes on {result_subject(request.task_id)}", file=sys.stderr)

        seen = 0
        while True:
            try:
                stream = fleet.StreamExecution(
                    pb.StreamExecutionRequest(execution_id=accepted.execution_id, from_sequence=seen + 1), **call
                )
                async for event in stream:
                    seen = event.sequence
                    if event.type == "tool_started":
                        operation = json.loads(event.payload_json)["entry"]["operation"]
                        print(f"{event.agent_id}: {operation}", file=sys.stderr)
                break
            except grpc.aio.AioRpcError as error:
                # An orchestrator that is replaced ends its streams; nothing is lost, go on behind the last event.
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(1)

        found = await fleet.GetExecution(pb.GetExecutionRequest(execution_id=accepted.execution_id), **call)
        execution = found.execution
        if not execution.winner_id:
            print(f"no winner: {pb.DeliberationStatus.Name(execution.status)}", file=sys.stderr)
            return 1
        patch = execution.results[0].patch
        if patch.WhichOneof("content") == "artifact":
            # What is large lies in the blob store.
            request = pb.GetArtifactRequest(execution_id=execution.execution_id, digest=patch.artifact.digest)
            async for part in fleet.GetArtifact(request, **call):
                sys.stdout.buffer.write(part.chunk)
        else:
            sys.stdout.buffer.write(patch.text)
        return 0


if __name__ == "__main__":
    if len(sys.argv) not in (5, 6):
        sys.exit(__doc__)
    sys.exit(asyncio.run(main(*sys.argv[1:])))
