"""Who may drive an execution: ownership stands in the log, being alive in a lease that the server ends."""

from __future__ import annotations

from collections.abc import Collection

from swe_ai_fleet.domain.execution import ExecutionState


def over(state: ExecutionState) -> bool:
    """Whether nothing is left to be done: it has ended, and subscribers have been told."""
    return state.status.terminal and state.result_published


def claimable(state: ExecutionState, alive: Collection[str], me: str) -> bool:
    """Whether this replica may try to take an execution that it does not drive at the moment.

    Something is left to be done, and nobody else is at it: no owner stands in the log, or one whose lease is gone, or
    this replica itself (an earlier drive of its own met a fault). A replica that has lost its own lease takes nothing,
    since everybody else would take it away again.

    The answer may come from a state and a set that are out of date. That costs a refusal and never an execution: the
    claim is appended with the generation after `state.generation` behind the subject's last event, so of all who try
    one succeeds, and whoever drove before is fenced from that moment on. (Gray and Cheriton, Leases, SOSP 1989; the
    generation is a fencing token, as in Burrows, The Chubby Lock Service, OSDI 2006.)

    Args:
        state: The execution as far as this replica knows.
        alive: The replicas that hold a lease.
        me: This replica.
    """
    if over(state) or me not in alive:
        return False
    return state.owner == me or state.owner not in alive
