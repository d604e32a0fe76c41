"""Several model servers as one chat model: routing, fail-over, waiting, and the fleet's limits."""

from swe_ai_fleet.adapters.model_pool.admission import Admission, LeasedAdmission, Quota
from swe_ai_fleet.adapters.model_pool.dispatcher import PoolRules
from swe_ai_fleet.adapters.model_pool.endpoint import Fault, FaultKind, Member
from swe_ai_fleet.adapters.model_pool.ledger import MemoryLedger
from swe_ai_fleet.adapters.model_pool.load import VLLMMetrics
from swe_ai_fleet.adapters.model_pool.pool import ModelPool, ModelSession

__all__ = [
    "Admission",
    "Fault",
    "FaultKind",
    "LeasedAdmission",
    "Member",
    "MemoryLedger",
    "ModelPool",
    "ModelSession",
    "PoolRules",
    "Quota",
    "VLLMMetrics",
]
