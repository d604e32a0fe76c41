"""Runs a workflow's nodes on the fleet: answers, tool calls, executions of their own, and approvals."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentTools
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest
from swe_ai_fleet.domain.assignment import AnswerAssignment, OperateAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.event import ExecutionStatus, NodeUpdated
from swe_ai_fleet.domain.memory import Memory, MemoryKind, task_namespaces
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.subtask import JOINT
from swe_ai_fleet.domain.task import ApprovalPolicy, Task, TaskKind, execution_id
from swe_ai_fleet.domain.tool import Outcome, Risk
from swe_ai_fleet.domain.workflow import AgentMode, JsonValue, Node, NodeStatus, NodeType
from swe_ai_fleet.extensions.workflows.node_checks import answer_output
from swe_ai_fleet.extensions.workflows.node_results import NodeResults
from swe_ai_fleet.extensions.workflows.runner import Asked, NodeApproval, NodeDecision, NodeOutcome
from swe_ai_fleet.extensions.workflows.tasks import (
    assignment_task,
    check_left,
    child_task,
    node_approval,
    node_name,
    node_run,
)
from swe_ai_fleet.orchestrator.execution_context import ExecutionContext
from swe_ai_fleet.orchestrator.groundwork import context_request
from swe_ai_fleet.orchestrator.subtasks import child_task_id
from swe_ai_fleet.tools.catalogue import operations
from swe_ai_fleet.tools.truncation import beginning

MAX_PROMPT_CHARS = 16_000
MAX_REMEMBERED_CHARS = 2_000
MAX_MARGIN_SECONDS = 2.0
_REFUSED = frozenset({Outcome.INVALID, Outcome.REFUSED})


class DriveInterrupted(Exception):
    """Infrastructure is unavailable: the node has not failed, but this drive ends and is resumed later.

    `cause` says which infrastructure.
    """

    def __init__(self, cause: Unavailable) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextmanager
def _interrupts_drive() -> Generator[None]:
    try:
        yield
    except Unavailable as error:
        raise DriveInterrupted(error) from error


@dataclass(kw_only=True)
class FleetNodes:
    """A `NodeRunner` on the fleet.

    Args:
        work: The workflow's execution.
        results: The commits and outputs of nodes.
        known: The last updates of the nodes under earlier drivers.
        spent: The usage under earlier drivers.
        sharing: How many instances of a node, one for each item of its maps, share its part of the task's limits.
    """

    work: ExecutionContext
    results: NodeResults
    known: Mapping[str, NodeUpdated]
    spent: Usage = field(default_factory=Usage)
    sharing: Callable[[str], int] = lambda _: 1
    _under_way: dict[str, str] = field(default_factory=dict[str, str])

    async def run(
        self, node: Node, inputs: Mapping[str, JsonValue], *, node_id: str, attempt: int, earlier: str
    ) -> NodeOutcome:
        """Run an agent or a tool node, or join its execution from before. Raises FleetError, DriveInterrupted."""
        with _interrupts_drive():
            return await self._outcome_of(node, inputs, node_id, attempt, earlier)

    async def _outcome_of(
        self, node: Node, inputs: Mapping[str, JsonValue], node_id: str, attempt: int, earlier: str
    ) -> NodeOutcome:
        number = self._try_number(node_id, attempt)
        if node.type is NodeType.TOOL:
            return await self._operate(node, inputs, node_id, number)
        query = str(inputs.get("query") or "")
        if node.agent_config.mode is AgentMode.ANSWER:
            return await self._answer(node, query, node_id, number)
        begun = {self._child(node, node_id, tried)[1]: tried for tried in range(1, attempt + 1)}
        return await self._solve(node, query, node_id, begun.get(earlier, number))

    @property
    def waits(self) -> bool:
        """Whether executions of nodes are running."""
        return bool(self._under_way)

    def execution_of(self, node: Node, *, node_id: str, attempt: int) -> str:
        """The id of the execution that an attempt will begin; empty where it begins none."""
        if node.type is not NodeType.AGENT or node.agent_config.mode is AgentMode.ANSWER:
            return ""
        return self._child(node, node_id, self._try_number(node_id, attempt))[1]

    def _child(self, node: Node, node_id: str, number: int) -> tuple[str, str]:
        """(task id, execution id) of a try; a try begun by an earlier version keeps the name that it had then."""
        task, deliver = self.work.task, node.agent_config.mode is AgentMode.ORCHESTRATE
        kind, last, child = TaskKind.ORCHESTRATE if deliver else TaskKind.DELIBERATE, self.known.get(node_id), ("", "")
        for joint in (".", JOINT):
            name = child_task_id(task.task_id, f"{node_name(node_id)}-{number}", joint)
            child = name, execution_id(tenant=task.tenant, kind=kind, task_id=name, attempt=task.attempt)
            if last is not None and last.execution_id == child[1]:
                break
        return child

    async def decide(self, approval: NodeApproval, asked: Asked) -> NodeDecision:
        """Ask a person through the execution's own approvals; no answer in time is a rejection."""
        # It ends shortly before the node's own timeout, so that the log has a decision and nothing waits for one.
        seconds = approval.timeout_seconds - min(MAX_MARGIN_SECONDS, approval.timeout_seconds / 5)
        with _interrupts_drive():
            prompt = approval.prompt or approval.description
            return await self._ask_person(approval.node_id, prompt, seconds=seconds, asked=asked)

    def _try_number(self, node_id: str, attempt: int) -> int:
        """The number of an attempt's try: an interrupted try is resumed as a new attempt, but is the same try."""
        update = self.known.get(node_id)
        if update is None or update.status not in (NodeStatus.RUNNING, NodeStatus.PENDING):
            return attempt
        return attempt - update.attempt + update.failures

    async def _answer(self, node: Node, query: str, node_id: str, attempt: int) -> NodeOutcome:
        task = assignment_task(self.work.task, node, node_id, sharing=self.sharing(node_id))
        name = node_run(node_id, attempt)
        before = self.work.known.agents.get(name)
        if before is None:
            check_left(self.work.task, self.spent)
        assignment = AnswerAssignment(
            execution_id=self.work.task.execution_id,
            agent_id=name,
            task=task,
            repository=await self.results.base(node_id),
            query=query,
            config=node.agent_config,
            background=await self._background(task, query),
        )
        answer = await self.work.runs.run(assignment)
        if before is None or before.usage == Usage():
            self.spent += answer.usage
        if answer.error:
            return NodeOutcome(error=answer.error, usage=answer.usage)
        if node.agent_config.use_memory:
            await self._remember(task, node_id, query, answer.text)
        output = answer_output(answer.text, tools=list(answer.tools), model=answer.model)
        return NodeOutcome(output=output, usage=answer.usage)

    async def _operate(self, node: Node, arguments: Mapping[str, JsonValue], node_id: str, attempt: int) -> NodeOutcome:
        text = json.dumps(dict(arguments), ensure_ascii=False)
        await self._require_permission(node, text, node_id)
        assignment = OperateAssignment(
            execution_id=self.work.task.execution_id,
            agent_id=node_run(node_id, attempt),
            task=assignment_task(self.work.task, node, node_id),
            repository=await self.results.base(node_id),
            tool=node.tool,
            arguments=text,
        )
        result = await self.work.runs.run(assignment)
        if not result.success:
            error = beginning(result.observation().removeprefix("Error: "), MAX_REMEMBERED_CHARS)
            raise (InvalidRequest if result.outcome in _REFUSED else PreconditionFailed)(error)
        output: dict[str, JsonValue] = {
            "content": result.content,
            "data": dict(result.metadata) or answer_output(result.content)["data"],
            "exit_code": result.exit_code,
            "truncated": result.truncated,
        }
        return NodeOutcome(output=output, usage=Usage(tool_calls=1, duration_ms=round(result.duration * 1000)))

    async def _solve(self, node: Node, query: str, node_id: str, attempt: int) -> NodeOutcome:
        """Run the node as an execution of its own, to the end."""
        task_id, _ = self._child(node, node_id, attempt)
        child = child_task(self.work.task, node, node_id, task_id, query, sharing=self.sharing(node_id))
        update = self.known.get(node_id)
        if update is None or update.execution_id != child.execution_id:
            check_left(self.work.task, self.spent)
        base = await self.results.base(node_id)
        before = self._under_way.get(node_id, child.execution_id)
        if before != child.execution_id:
            await self.cancel((before,), "it timed out")
        self._under_way[node_id] = child.execution_id
        state = await self.work.children.wait(self.work.task.tenant, await self.work.children.begin(child, base))
        del self._under_way[node_id]
        self.spent += state.usage
        if state.status is not ExecutionStatus.COMPLETED:
            error = f"execution {state.execution_id} ended {state.status}: {state.error}"[:MAX_REMEMBERED_CHARS]
            # A person who refused must not be asked again.
            return NodeOutcome(error=error, again=state.status is not ExecutionStatus.REJECTED, usage=state.usage)
        output = await self.results.take_output(node_id, state)
        return NodeOutcome(output=output, execution_id=state.execution_id, usage=state.usage)

    async def _require_permission(self, node: Node, arguments: str, node_id: str) -> None:
        """Ask a person where the task's policy requires it for this call. Raises InvalidRequest for a refusal."""
        policy = self.work.task.approval
        if policy not in (ApprovalPolicy.RISKY, ApprovalPolicy.EVERY):
            return
        definition = {**operations(), **SubAgentTools.definitions}.get(node.tool)
        spec = definition.spec if definition is not None else None
        if spec is not None and spec.read_only:
            return
        if policy is ApprovalPolicy.RISKY and spec is not None and spec.risk is Risk.LOW:
            return
        prompt = f"Call {node.tool}."
        reply = await self._ask_person(node_id, prompt, tool=node.tool, arguments=arguments, policy=policy)
        if reply.decision is not ApprovalDecision.APPROVED:
            raise InvalidRequest(f"{reply.approver or 'somebody'} refused the call: {reply.text or reply.decision}")

    async def _ask_person(
        self,
        node_id: str,
        prompt: str,
        *,
        seconds: float = 0.0,
        asked: Asked | None = None,
        tool: str = "approve",
        arguments: str = "{}",
        policy: ApprovalPolicy = ApprovalPolicy.PLAN,
    ) -> NodeDecision:
        now, name = datetime.now(UTC), node_approval(node_id)
        seconds = seconds or self.work.deps.approval_timeout_seconds
        request = ApprovalRequest(
            approval_id=name,
            agent_id=name,
            policy=policy,
            goal=self.work.task.description,
            approach=beginning(prompt, MAX_PROMPT_CHARS),
            call=ToolCall(call_id=name, model_call_id=name, name=tool, arguments=arguments[:MAX_PROMPT_CHARS]),
            step=0,
            requested_at=now.isoformat(),
            expires_at=(now + timedelta(seconds=seconds)).isoformat() if seconds else "",
        )
        decision = await self.work.runs.approvals.ask(request, asked)
        return NodeDecision(decision=decision.decision, text=decision.text, approver=decision.approver)

    async def _background(self, task: Task, query: str) -> str:
        """The context of a question; empty where it is unavailable: the node then runs without it."""
        question = replace(task, kind=TaskKind.DELIBERATE, description=beginning(query, MAX_REMEMBERED_CHARS))
        request = context_request(question)
        context = self.work.deps.context
        if context is None or request is None:
            return ""
        try:
            return (await context.gather(request)).text
        except FleetError:
            return ""

    async def _remember(self, task: Task, node_id: str, query: str, answer: str) -> None:
        memories = self.work.deps.memories
        if memories is None:
            return
        text = f"{beginning(query, MAX_REMEMBERED_CHARS // 2)}\n{beginning(answer, MAX_REMEMBERED_CHARS)}"
        memory = Memory(
            tenant=task.tenant,
            namespace=task_namespaces(task)[0],
            text=text,
            kind=MemoryKind.INTERACTION,
            source=f"execution:{task.execution_id}",
            metadata={"node": node_id},
        )
        # a failure to remember must not lose the answer
        with suppress(FleetError):
            await memories.remember(memory)

    async def cancel_rest(self, nodes: Mapping[str, NodeUpdated], reason: str) -> None:
        """Cancel the executions of nodes that still run after the workflow has ended."""
        stopped = (each.execution_id for each in nodes.values() if each.status is NodeStatus.SKIPPED)
        await self.cancel(dict.fromkeys(filter(None, (*self._under_way.values(), *stopped))), reason)

    async def cancel(self, executions: Iterable[str], reason: str) -> None:
        """Cancel executions; those that never began or have ended are skipped."""
        for name in executions:
            with suppress(NotFound):
                await self.work.children.cancel(self.work.task.tenant, name, reason)
