"""Tasks that run workflows: their checks at submission, and the tasks of their nodes.

A node's task has a name, a description, and limits of its usage.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.command import CheckSpec
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import is_object, parse_json
from swe_ai_fleet.domain.memory import MAX_NAMESPACES, agent_namespace, task_namespaces
from swe_ai_fleet.domain.task import (
    MAX_DESCRIPTION_BYTES,
    MAX_PRIORITY,
    SCRATCH,
    Constraints,
    MemoryOptions,
    Role,
    Task,
    TaskKind,
)
from swe_ai_fleet.domain.workflow import AgentMode, JsonValue, Node, NodeType, Workflow, WorkflowTask
from swe_ai_fleet.extensions.workflows.runner import checked_inputs, memory_name
from swe_ai_fleet.orchestrator.subtasks import part
from swe_ai_fleet.tools.catalogue import operations
from swe_ai_fleet.tools.truncation import beginning

NODE = "node-"
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
_UNSAFE_CHARS = re.compile(r"[^A-Za-z0-9_-]+")
_MAX_NAME_CHARS = 48
_MAX_DESCRIPTION_CHARS = 8_000
MAX_ROUNDS = 16


def node_name(node_id: str) -> str:
    """A name for a node's id in a run, of letters, digits, `-` and `_` only."""
    if _SAFE_NAME.fullmatch(node_id):
        return node_id
    digest = hashlib.sha256(node_id.encode()).hexdigest()[:8]
    return f"{_UNSAFE_CHARS.sub('-', node_id)[:_MAX_NAME_CHARS].strip('-')}-{digest}"


def node_run(node_id: str, attempt: int) -> str:
    """The name of the agent run of one attempt of a node; its subject in the log."""
    return f"{NODE}{node_name(node_id)}-{attempt}"


def node_approval(node_id: str) -> str:
    """The id of a node's approval."""
    return f"{NODE}{node_name(node_id)}"


def child_task(parent: Task, node: Node, node_id: str, task_id: str, query: str, *, sharing: int = 1) -> Task:
    """The task of an agent node with candidates; the same parent, node and query always give the same task.

    It inherits limits, environment, network, approval, memory and story. Of the parent's totals it has an equal part,
    one for each agent node; the `sharing` items of a map divide that part again.
    """
    config = node.agent_config
    description, context = _description(query, parent.context)
    constraints = _constraints(parent, node)
    agents = max(1, config.agents)
    if config.checks:
        checks = tuple(CheckSpec(name=command, command=command) for command in dict.fromkeys(config.checks))
        constraints = replace(constraints, checks=checks)
    totals = part(constraints.totals, Usage(), _parts(parent, sharing), least=agents)
    return replace(
        parent,
        task_id=task_id,
        kind=TaskKind.ORCHESTRATE if config.mode is AgentMode.ORCHESTRATE else TaskKind.DELIBERATE,
        description=description,
        role=Role.parse(config.role),
        context=context,
        constraints=replace(constraints, totals=totals),
        # Every delivery has its own branch, and so has every further run of the workflow.
        delivery=replace(parent.delivery, branch=f"fleet/{task_id}.{parent.attempt}" if parent.attempt > 1 else ""),
        num_agents=agents,
        rounds=config.rounds,
        tools=tuple(config.tools),
        model_profile=config.model or parent.model_profile,
        # The work of running executions has priority over waiting tasks.
        priority=min(MAX_PRIORITY, parent.priority + 1),
        derive_subtasks=False,
        parent_execution_id=parent.execution_id,
        memory=_memory(parent, node, node_id),
        workflow=None,
    )


def assignment_task(parent: Task, node: Node, node_id: str, *, sharing: int = 1) -> Task:
    """The task of one answer or one tool call, which is part of the parent's own execution.

    An answer may use an equal part of the parent's totals, as in `child_task`.
    """
    constraints = _constraints(parent, node)
    if node.type is NodeType.AGENT:
        limits = constraints.totals.share(constraints.limits, parts=_parts(parent, sharing))
        constraints = replace(constraints, limits=limits)
    return replace(
        parent,
        role=Role.parse(node.agent_config.role),
        constraints=constraints,
        memory=_memory(parent, node, node_id),
        workflow=None,
    )


def check_left(parent: Task, spent: Usage) -> None:
    """Raise InvalidRequest where the run's totals are used up: failed attempts use more than their own part."""
    totals = parent.constraints.totals
    for name, most, used in (
        ("total_max_tokens", totals.max_tokens, spent.total_tokens),
        ("total_max_tool_calls", totals.max_tool_calls, spent.tool_calls),
        ("total_max_cost", totals.max_cost, spent.cost),
    ):
        if most and used >= most:
            raise InvalidRequest(f"the run has used up its {name} of {most:g}", field=f"constraints.{name}")


def nodes_of(workflow: Workflow) -> Iterator[Node]:
    """Every node that a workflow defines, those of maps and resolved sub-workflows included."""
    waiting = [*workflow.nodes]
    while waiting:
        node = waiting.pop()
        yield node
        if node.node is not None:
            waiting.append(node.node)
        if isinstance(node.workflow, Workflow):
            waiting.extend(node.workflow.nodes)


def _parts(parent: Task, sharing: int) -> int:
    """The number of parts into which the totals are divided, for a node with `sharing` instances."""
    if parent.workflow is None:
        return sharing
    return max(1, sum(node.type is NodeType.AGENT for node in nodes_of(parent.workflow.workflow))) * sharing


def _constraints(parent: Task, node: Node) -> Constraints:
    """The parent's constraints, with the node's own limits of time and iterations if they are lower."""
    limits, config = parent.constraints.limits, node.agent_config
    if node.timeout_seconds > 0:
        limits = replace(limits, timeout_seconds=max(1.0, float(min(limits.timeout_seconds, node.timeout_seconds))))
    if config.max_iterations > 0:
        limits = replace(limits, max_iterations=min(limits.max_iterations, config.max_iterations))
    return replace(parent.constraints, limits=limits)


def _memory(parent: Task, node: Node, node_id: str) -> MemoryOptions:
    """The parent's memory; for an agent that remembers, its own namespace comes first."""
    memory = parent.memory
    if not node.agent_config.use_memory or parent.workflow is None:
        return memory
    own = agent_namespace(memory_name(parent.workflow.workflow.name, node_id))
    shared = task_namespaces(parent) if memory.read else ()
    return replace(memory, read=True, write=True, namespaces=(own, *shared)[:MAX_NAMESPACES])


def _description(query: str, context: str) -> tuple[str, str]:
    """Description and context; a query too long for a description is repeated in the context in full."""
    if len(query.encode()) <= MAX_DESCRIPTION_BYTES:
        return query, context
    whole = "\n\n".join(filter(None, (context, f"The whole of the task:\n{query}")))
    return beginning(query, _MAX_DESCRIPTION_CHARS), whole


def check_workflow(task: Task, *, profiles: Collection[str], max_agents: int, memory: bool = False) -> None:
    """Check that this installation can run a task's workflow with its inputs. Raises InvalidRequest with the field."""
    if task.workflow is None:
        return
    for node in nodes_of(task.workflow.workflow):
        _check_node(node, task, profiles, max_agents)
        if node.agent_config.use_memory and not memory:
            raise InvalidRequest(
                "memory is not available", field=f"workflow.nodes[{node.id[:64]}].use_memory", hint="leave it out"
            )
    checked_inputs(task.workflow.workflow, inputs_of(task.workflow))


def inputs_of(order: WorkflowTask) -> Mapping[str, JsonValue]:
    """The inputs of a run. Raises InvalidRequest where they are not a JSON object."""
    try:
        inputs = parse_json(order.inputs or "{}")
    except ValueError as error:
        raise InvalidRequest(f"the inputs are not valid JSON: {str(error)[:200]}", field="inputs") from None
    if not is_object(inputs):
        raise InvalidRequest("the inputs are not a JSON object", field="inputs", hint='such as {"query": "..."}')
    return inputs


def _check_tool(name: str, where: str) -> None:
    """Refuse a name that matches several tools: an agent can have all of them, but a call is of one."""
    tools = operations()
    if name not in tools and (matches := sorted(each for each, tool in tools.items() if tool.spec.tool == name)):
        raise InvalidRequest(f"{name[:64]!r} matches several tools", field=where, hint=f"one of {', '.join(matches)}")


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
        names = ", ".join(sorted(profiles)) or "none is configured"
        raise InvalidRequest(f"there is no model profile {config.model[:64]!r}", field=f"{where}.model", hint=names)
    if config.mode is AgentMode.ANSWER:
        return
    if not 1 <= config.agents <= max_agents:
        raise InvalidRequest(f"{config.agents} agents", field=f"{where}.agents", hint=f"1 to {max_agents}")
    if not 0 <= config.rounds <= MAX_ROUNDS:
        raise InvalidRequest(f"{config.rounds} rounds", field=f"{where}.rounds", hint=f"0 to {MAX_ROUNDS}")
    if config.mode is AgentMode.ORCHESTRATE and task.repo.location == SCRATCH:
        raise InvalidRequest(
            f"the node {node.id[:64]} delivers a branch, but there is no repository",
            field="repo",
            hint="set the repository to work on",
        )
