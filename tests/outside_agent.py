"""An agent that somebody else runs, as small as it can be: it serves `fleet.agent.v1.AgentService`.

What `solve` does with the clone is the agent; the rest is what any harness needs to sit in a council.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio

from fleet.agent.v1 import agent_pb2 as pb
from fleet.agent.v1.agent_pb2_grpc import AgentServiceServicer, add_AgentServiceServicer_to_server

Solve = Callable[[Path, pb.Assignment], Awaitable[str]]
"""Works in a clone and says in a few words what it did."""


class SmallHarness(AgentServiceServicer):
    """Clones the bundle, lets `solve` work, and hands in what `git diff` says."""

    def __init__(self, solve: Solve, *, name: str = "small-harness") -> None:
        self._solve = solve
        self._name = name
        self.assignments: list[pb.Assignment] = []
        self.metadata: list[dict[str, str]] = []

    async def Describe(self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext) -> pb.DescribeResponse:
        return pb.DescribeResponse(name=self._name, protocol_version=1, languages=["python"])

    async def Solve(
        self, requests: AsyncIterator[pb.SolveRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.SolveResponse]:
        assignment, bundle, patch = pb.Assignment(), bytearray(), bytearray()
        async for request in requests:
            if request.HasField("assignment"):
                assignment = request.assignment
            bundle += request.bundle
            patch += request.revised_patch
        self.assignments.append(assignment)
        self.metadata.append(dict(context.invocation_metadata() or ()))
        yield pb.SolveResponse(progress=pb.Progress(text=f"cloning {assignment.repository.base_commit[:7]}"))
        with tempfile.TemporaryDirectory() as directory:
            clone = Path(directory) / "clone"
            await asyncio.to_thread(_clone, bytes(bundle), clone, bytes(patch))
            summary = await self._solve(clone, assignment)
            diff = await asyncio.to_thread(_diff, clone)
        usage = pb.Usage(prompt_tokens=120, completion_tokens=30, model_calls=2, tool_calls=1)
        yield pb.SolveResponse(result=pb.Result(patch=diff, summary=summary, usage=usage))


@asynccontextmanager
async def serving(servicer: AgentServiceServicer, tls: grpc.ServerCredentials | None = None) -> AsyncIterator[str]:
    """The address at which an agent answers until the context ends."""
    server = grpc.aio.server()
    add_AgentServiceServicer_to_server(servicer, server)
    place = "127.0.0.1:0"
    port = server.add_secure_port(place, tls) if tls else server.add_insecure_port(place)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(grace=0)


def _clone(bundle: bytes, clone: Path, patch: bytes) -> None:
    file = clone.with_name("repository.bundle")
    file.write_bytes(bundle)
    _git(clone.parent, "clone", "--quiet", "--branch", "base", "--", str(file), str(clone))
    if patch:
        _git(clone, "apply", "-", stdin=patch)


def _diff(clone: Path) -> bytes:
    _git(clone, "add", "--all")
    return _git(clone, "diff", "--cached", "--binary", "origin/base")


def _git(directory: Path, *args: str, stdin: bytes = b"") -> bytes:
    return subprocess.run(["git", *args], cwd=directory, input=stdin, capture_output=True, check=True).stdout
