"""Agents in the workspace: a harness is started over the clone, in its sandbox, and works there on one task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from swe_ai_fleet.adapters.acp.harness import Harness
from swe_ai_fleet.adapters.acp.permissions import Permissions
from swe_ai_fleet.adapters.acp.session import Session
from swe_ai_fleet.agents.external_agent import HandedIn, Handout
from swe_ai_fleet.agents.outside_record import AgentFault
from swe_ai_fleet.agents.prompting import rendered
from swe_ai_fleet.agents.solving import policy_of
from swe_ai_fleet.domain.council import HARNESS
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.sandbox.interactive import InteractiveProcess
from swe_ai_fleet.sandbox.policy import SandboxPolicy
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits


@dataclass(frozen=True, kw_only=True)
class HarnessAgents:
    """An `OutsideAgent` for the harnesses of an installation, at endpoints `acp:NAME`.

    Attributes:
        harnesses: By name.
        sandbox: What confines them.
        approval_timeout_seconds: How long people have to decide what one of them asks; 0: for ever.
    """

    harnesses: Mapping[str, Harness]
    sandbox: SandboxPolicy
    approval_timeout_seconds: float = 0.0
    in_place = True

    async def describe(self, endpoint: str) -> str:
        """`acp:NAME VERSION`, as settings have it. Raises AgentFault."""
        return f"{endpoint} {self._harness(endpoint).version}".strip()

    async def solve(self, endpoint: str, handout: Handout) -> HandedIn:
        """Let the harness work in the clone; once this returns none of its processes lives. See `OutsideAgent`."""
        task, run = handout.assignment.task, handout.record.run
        policy = policy_of(task)
        permissions = Permissions(handout, policy, timeout_seconds=self.approval_timeout_seconds)
        decisions = await permissions.settle()
        if permissions.gate.rejection:
            return HandedIn(stop=StopReason.REJECTED, error=permissions.gate.rejection)
        command = self._harness(endpoint).started(
            handout.clone.environment,
            model_url="",
            model="",
            read_only=not task.enable_tools or permissions.gate.wants_proposal,
        )
        pipeline = Pipeline(
            trail=run.trail,
            policy=policy,
            mask=run.equipment.mask,
            store=run.store,
            limits=ToolLimits(command_timeout_seconds=task.constraints.limits.command_timeout_seconds),
        )
        process = await InteractiveProcess.start(
            handout.clone.root, command, policy=replace(self.sandbox, tenant=task.tenant)
        )
        session = Session(process, handout, pipeline, permissions)
        try:
            await session.open()
            return await session.work(_prompt(handout, decisions))
        finally:
            await uninterrupted(session.close())

    def _harness(self, endpoint: str) -> Harness:
        harness = self.harnesses.get(endpoint.removeprefix(HARNESS))
        if harness is None:
            known = ", ".join(sorted(self.harnesses)) or "none is configured"
            raise AgentFault(f"there is no harness {endpoint[:60]!r} here", hint=known)
        return harness


def _prompt(handout: Handout, decisions: tuple[str, ...]) -> str:
    """The task, and for a run that goes on what an earlier process of it came to."""
    earlier = handout.record.run.earlier
    if not earlier.steps:
        return handout.prompt
    said = [step.reply.content for step in earlier.steps if step.reply.content]
    again = rendered("harness_again", said=said[-1] if said else "", decisions=decisions)
    return f"{handout.prompt}\n\n{again}"
