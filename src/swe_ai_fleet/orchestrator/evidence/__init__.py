"""Evidence: what can be checked about a candidate, in the order from cheap to dear."""

from swe_ai_fleet.orchestrator.evidence.gatherer import EvidenceGatherer, suites_of

__all__ = ["EvidenceGatherer", "suites_of"]
