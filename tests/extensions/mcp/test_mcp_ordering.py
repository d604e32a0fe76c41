"""Tasks that come in over MCP, as requests."""

from __future__ import annotations

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.cli.screen import CommandFault
from swe_ai_fleet.extensions.mcp.server import submission


@pytest.mark.parametrize("deliberate_only", [True, False])
def test_who_may_not_approve_cannot_do_without(deliberate_only: bool) -> None:
    def order(asked: str) -> Order:
        repo = "https://example.org/a.git"
        return Order(description="Do it.", repo=repo, approve=asked, deliberate_only=deliberate_only)

    for asked, may_approve, policy in (
        ("", False, pb.APPROVAL_POLICY_RISKY), ("plan", False, pb.APPROVAL_POLICY_PLAN),
        ("every", False, pb.APPROVAL_POLICY_EVERY), ("", True, pb.APPROVAL_POLICY_UNSPECIFIED),
        ("none", True, pb.APPROVAL_POLICY_NONE),
    ):  # fmt: skip
        request = submission(order(asked), may_approve=may_approve)
        assert (request.deliberate if deliberate_only else request.orchestrate).approval == policy
    with pytest.raises(CommandFault) as refusal:
        submission(order("none"), may_approve=False)
    assert refusal.value.field == "approval"
