"""Tasks that are runs of workflows, as they are handed in."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import cast

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import SCRATCH, Role, Task, TaskKind
from swe_ai_fleet.domain.workflow import AgentMode, JsonValue, Node, NodeType, WorkflowTask
from swe_ai_fleet.orchestrator.node_tasks import nodes_of
from swe_ai_fleet.tools.catalogue import operations
from swe_ai_fleet.workflows.values import checked_inputs

MAX_ROUNDS = 16


def normalised(task: Task) -> Task:
    """A run of a workflow as the log will have it, so that its nodes' tasks are the same to every driver; with a
    repository: one that names none works on one that has nothing in it. Other tasks as they are."""
    if task.kind is not TaskKind.WORKFLOW:
        return task
    if not task.repo.location.strip():
        task = replace(task, repo=replace(task.repo, location=SCRATCH))
    return from_json(Task, to_json(task))


def check_workflow(task: Task, *, profiles: Collection[str], max_agents: int, memory: bool = False) -> None:
    """Whether this installation can run a task's workflow with its inputs. Raises InvalidRequest naming the field."""
    if (task.kind is TaskKind.WORKFLOW) != (task.workflow is not None):
        raise InvalidRequest("a task has a workflow if, and only if, it is a run of one", field="workflow")
    if task.kind is TaskKind.ORCHESTRATE and task.repo.location == SCRATCH:
        raise InvalidRequest("nothing can be delivered to an empty repository", field="repo", hint="name another one")
    if task.workflow is None:
        return
    for node in nodes_of(task.workflow.workflow):
        _check_node(node, task, profiles, max_agents)
        if node.agent_config.use_memory and not memory:
            raise InvalidRequest(
                "there is no memory here", field=f"workflow.nodes[{node.id[:64]}].use_memory", hint="leave it out"
            )
    checked_inputs(task.workflow.workflow, inputs_of(task.workflow))


def inputs_of(order: WorkflowTask) -> Mapping[str, JsonValue]:
    """The inputs of a run. Raises InvalidRequest where they are no JSON object."""
    try:
        found: object = json.loads(order.inputs or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the inputs are no JSON: {str(error)[:200]}", field="inputs") from None
    if not isinstance(found, dict):
        raise InvalidRequest("the inputs are no JSON object", field="inputs", hint='such as {"query": "..."}')
    return cast("dict[str, JsonValue]", found)


def _check_tool(name: str, where: str) -> None:
    """Refuse what names several tools: agents can be given them, a call is of one."""
    known = operations()
    if name not in known and (those := sorted(one for one, each in known.items() if each.spec.tool == name)):
        raise InvalidRequest(f"{name[:64]!r} names several tools", field=where, hint=f"one of {', '.join(those)}")


def _check_node(node: Node, task: Task, profiles: Collection[str], max_agents: int) -> None:
    where, config = f"workflow.nodes[{node.id[:64]}]", node.agent_config
    if node.type is NodeType.WORKFLOW and isinstance(node.workflow, str):
        raise InvalidRequest(f"there is no workflow {node.workflow[:64]!r}", field=where)
    if node.type is NodeType.TOOL:
        _check_tool(node.tool, f"{where}.tool")
    if node.type is not NodeType.AGENT:
        return
    Role.parse(config.role)
    if config.model and config.model not in profiles:
        known = ", ".join(sorted(profiles)) or "none is configured"
        raise InvalidRequest(f"there is no model profile {config.model[:64]!r}", field=f"{where}.model", hint=known)
    if config.mode is AgentMode.ANSWER:
        return
    if not 1 <= config.agents <= max_agents:
        raise InvalidRequest(f"{config.agents} agents", field=f"{where}.agents", hint=f"1 to {max_agents}")
    if not 0 <= config.rounds <= MAX_ROUNDS:
        raise InvalidRequest(f"{config.rounds} rounds", field=f"{where}.rounds", hint=f"0 to {MAX_ROUNDS}")
    if config.mode is AgentMode.ORCHESTRATE and task.repo.location == SCRATCH:
        raise InvalidRequest(
            f"the node {node.id[:64]} delivers a branch, and there is no repository for it",
            field="repo",
            hint="name the repository to work on",
        )
