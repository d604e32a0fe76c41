"""The change that won."""

from __future__ import annotations

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import FleetClient


async def winning_diff(client: FleetClient, found: pb.Execution) -> bytes:
    """The winner's patch; empty without a winner."""
    patch = next((one.patch for one in found.results if one.candidate_id == found.winner_id), pb.Patch())
    if patch.WhichOneof("content") == "artifact":
        return await client.artifact(found.execution_id, patch.artifact.digest)
    return patch.text
