"""What steering a workflow means: which words are to be told to it, given where it stands."""

from __future__ import annotations

from swe_ai_fleet.domain.errors import InvalidRequest, NotFound, PreconditionFailed
from swe_ai_fleet.domain.event import BreakpointsSet
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.workflow import NodeStatus

PAUSE, STEP, CONTINUE = "pause", "step", "continue"
ACTIONS = (PAUSE, STEP, CONTINUE)
MAX_BY_CHARS = 200


def words(state: ExecutionState, action: str, node_id: str = "", *, by: str = "") -> tuple[BreakpointsSet, ...]:
    """What has to be written for an action to hold; nothing where it holds already.

    Nodes are let go by name, so that the word holds for a driver that takes over later too. Raises InvalidRequest,
    NotFound (no such node), PreconditionFailed (no workflow, an end, nothing is paused).
    """
    if state.task.workflow is None:
        raise PreconditionFailed("the execution runs no workflow", field="execution_id")
    if action not in ACTIONS:
        raise InvalidRequest(f"unknown action {action[:40]!r}", field="action", hint=f"one of {', '.join(ACTIONS)}")
    if state.status.terminal:
        raise PreconditionFailed(f"the execution has ended: {state.status}", field="execution_id")
    if node_id and action != STEP:
        raise InvalidRequest(f"{action} holds for the whole run", field="node_id", hint="leave it out, or use step")
    by = by[:MAX_BY_CHARS]
    let_go = {one.node_id for one in state.steering if one.action == STEP}
    paused = [name for name, one in state.nodes.items() if one.status is NodeStatus.PAUSED and name not in let_go]
    steps = tuple(BreakpointsSet(action=STEP, node_id=name, by=by) for name in paused)
    match action:
        case "pause":
            return () if _holding(state) else (BreakpointsSet(action=PAUSE, by=by),)
        case "continue":
            return (*steps, BreakpointsSet(action=CONTINUE, by=by)) if steps or _holding(state) else ()
        case _ if node_id:
            _check_node(state, node_id)
            begun = node_id in state.nodes and state.nodes[node_id].status is not NodeStatus.PAUSED
            return () if begun or node_id in let_go else (BreakpointsSet(action=STEP, node_id=node_id, by=by),)
        case _:
            if not steps:
                raise PreconditionFailed("no node is paused", field="action", hint="see which nodes there are")
            return steps


def _holding(state: ExecutionState) -> bool:
    """Whether nodes that have not begun are held back, breakpoints aside."""
    return bool(state.steering) and state.steering[-1].action != CONTINUE


def _check_node(state: ExecutionState, node_id: str) -> None:
    workflow = state.task.workflow
    known = {node.id for node in workflow.workflow.nodes} if workflow is not None else set[str]()
    if node_id.partition("/")[0].partition("[")[0] not in known:
        raise NotFound(f"the workflow has no node {node_id[:64]!r}", field="node_id")
