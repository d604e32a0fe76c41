"""Tasks that come in over MCP, as requests."""

from __future__ import annotations

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.exits import CommandFault
from swe_ai_fleet.cli.mcp.ordering import submission
from swe_ai_fleet.cli.order import Order


@pytest.mark.parametrize("deliberate_only", [True, False])
@pytest.mark.parametrize(
    ("asked", "may_approve", "policy"),
    [
        ("", False, pb.APPROVAL_POLICY_RISKY),
        ("plan", False, pb.APPROVAL_POLICY_PLAN),
        ("every", False, pb.APPROVAL_POLICY_EVERY),
        ("", True, pb.APPROVAL_POLICY_UNSPECIFIED),
        ("none", True, pb.APPROVAL_POLICY_NONE),
    ],
)
def test_who_may_not_approve_cannot_do_without(
    asked: str, may_approve: bool, policy: pb.ApprovalPolicy, deliberate_only: bool
) -> None:
    order = Order(
        description="Do it.", repo="https://example.org/a.git", approve=asked, deliberate_only=deliberate_only
    )
    request = submission(order, may_approve=may_approve)
    assert (request.deliberate if deliberate_only else request.orchestrate).approval == policy


def test_waiving_is_refused_by_name() -> None:
    order = Order(description="Do it.", repo="https://example.org/a.git", approve="none")
    with pytest.raises(CommandFault) as refusal:
        submission(order, may_approve=False)
    assert refusal.value.field == "approval"
