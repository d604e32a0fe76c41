"""Where agents' audit chains stand, as messages."""

from __future__ import annotations

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.contract import to_message
from swe_ai_fleet.domain.audit import SignedHead
from swe_ai_fleet.domain.execution import AgentProgress, ExecutionState


def audit_heads(state: ExecutionState) -> list[pb.AuditHead]:
    """The head of each agent's audit chain, with the signature where that is about it."""
    return [_audit_head(one, state.signed_heads.get(one.agent_id)) for one in state.agents.values() if one.audit_head]


def _audit_head(agent: AgentProgress, signed: SignedHead | None) -> pb.AuditHead:
    if signed is None or signed.hash != agent.audit_head:
        return pb.AuditHead(agent_id=agent.agent_id, hash=agent.audit_head)
    return to_message(pb.AuditHead, signed, agent_id=agent.agent_id)


def audit_head(state: ExecutionState) -> str:
    """The head of the winner's audit chain; every agent has a chain of its own."""
    winner = state.candidates.get(state.winner_id)
    return winner.audit_head if winner else ""
