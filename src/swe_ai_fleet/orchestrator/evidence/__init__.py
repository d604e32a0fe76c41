"""Evidence about candidates: policy, lint, build and tests, the task's commands, its rubric."""

from swe_ai_fleet.orchestrator.evidence.gatherer import EvidenceGatherer
from swe_ai_fleet.orchestrator.evidence.policy import PolicyRules

__all__ = ["EvidenceGatherer", "PolicyRules"]
