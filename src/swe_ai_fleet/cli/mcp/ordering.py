"""A task as a client hands it in, and the request it becomes."""

from __future__ import annotations

from dataclasses import replace

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.domain.task import ApprovalPolicy


def submission(order: Order, *, may_approve: bool) -> pb.SubmitTaskRequest:
    """The request. Raises CommandFault with the name of the argument that is wrong.

    Whose client may not answer approvals has risky calls approved by a person, unless the order asks for more.
    """
    if may_approve:
        return order.request()
    if order.approve == "none":
        raise CommandFault(
            "an agent may not waive approvals",
            exit_code=Exit.USAGE,
            field="approval",
            hint="leave it empty for risky; a person may start this server with --allow-approve",
        )
    # Left open it would be none: that is what such a client may not ask for.
    return replace(order, approve=order.approve or ApprovalPolicy.RISKY.value).request()
