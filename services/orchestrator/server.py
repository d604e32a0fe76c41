"""The orchestrator as a service to be served."""

from __future__ import annotations

from typing import Any, cast

from fleet.orchestrator.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from services.grpc_server import Service
from services.orchestrator.servicer import OrchestratorServicer

SERVICE = orchestrator_pb2.DESCRIPTOR.services_by_name["OrchestratorService"].full_name


def orchestrator_service(servicer: OrchestratorServicer) -> Service:
    """What a gRPC server needs to serve it."""
    add = cast("Any", orchestrator_pb2_grpc).add_OrchestratorServiceServicer_to_server
    return Service(name=SERVICE, add=add, servicer=servicer)
