"""A task as a client hands it in, and the request it becomes."""

from __future__ import annotations

from dataclasses import replace

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.task import ApprovalPolicy, check_identifier

RISKY = ApprovalPolicy.RISKY.value


def submission(order: Order, *, may_approve: bool) -> pb.SubmitTaskRequest:
    """The request. Raises CommandFault with the tool's own name of the argument that is wrong.

    Whose client may not answer approvals has risky calls approved by a person, unless the order asks for more.
    """
    if not order.description.strip():
        raise _wrong("task", "it is empty", "say what is to be done")
    if order.task_id:
        try:
            check_identifier(order.task_id, field="task_id")
        except FleetError as error:
            raise _wrong("task_id", error.message, error.hint) from None
    if order.approve == "none" and not may_approve:
        raise _wrong(
            "approval",
            "an agent may not waive approvals",
            "leave it empty for risky; a person may start this server with --allow-approve",
        )
    if order.deliberate_only and order.branch:
        raise _wrong("branch", "a deliberation applies nothing", "take mode orchestrate, or no branch")
    if not order.approve and not may_approve:
        # Left open it would be none: that is what such a client may not ask for.
        order = replace(order, approve=RISKY)
    try:
        return order.request()
    except CommandFault as fault:
        # What is left to be wrong.
        raise _wrong("repo", fault.message.removeprefix("--repo "), fault.hint) from None


def _wrong(field: str, message: str, hint: str) -> CommandFault:
    return CommandFault(message, exit_code=Exit.USAGE, field=field, hint=hint)
