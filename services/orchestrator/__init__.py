"""The orchestrator's gRPC services; what is named here is loaded when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from services.orchestrator.fleet_status import Councils, FleetStatuses
    from services.orchestrator.intake import PLANNING_BUCKET, PLANS, TASKS, open_intake, task_of
    from services.orchestrator.metrics import Metrics
    from services.orchestrator.planning import PlanningServicer, plan_buckets
    from services.orchestrator.servicer import OrchestratorServicer
    from services.orchestrator.uploads import Uploads

__all__ = [
    "PLANNING_BUCKET",
    "PLANS",
    "TASKS",
    "Councils",
    "FleetStatuses",
    "Metrics",
    "OrchestratorServicer",
    "PlanningServicer",
    "Uploads",
    "open_intake",
    "plan_buckets",
    "task_of",
]
_HOMES = {
    "fleet_status": ("Councils", "FleetStatuses"),
    "intake": ("PLANNING_BUCKET", "PLANS", "TASKS", "open_intake", "task_of"),
    "metrics": ("Metrics",),
    "planning": ("PlanningServicer", "plan_buckets"),
    "servicer": ("OrchestratorServicer",),
    "uploads": ("Uploads",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
