"""`VLLMAgentJob`: one Ray actor, one agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import ray

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.ray_jobs.agent_host import AgentHost
from swe_ai_fleet.runtime.tool_enabled_agent import ToolEnabledAgent
from swe_ai_fleet.settings import Settings


class VLLMAgentJobActor(AgentHost):
    """One agent in one workspace, for callers who schedule agents themselves; `VLLMAgentJob.remote(...)` starts it.

    The fleet uses the same actor, by its `run_assignment`, when it runs one agent an actor.

    Args:
        agent_id: Names the agent in events and results.
        role: DEV, QA, ARCHITECT, DEVOPS or DATA.
        vllm_url: Base URL of the model server.
        workspace_path: The clone to work in; it is used as it is and not removed.
        nats_url: Where the result goes; a token may stand in it (`nats://token@host:port`).
        model: Model name; empty = the first that the server lists.
        settings: The fleet's settings as JSON; empty = those of the actor's environment.
    """

    def __init__(
        self,
        agent_id: str,
        role: str,
        vllm_url: str = "",
        workspace_path: str = "",
        nats_url: str = "",
        model: str = "",
        *,
        settings: str = "",
    ) -> None:
        base = Settings.model_validate_json(settings) if settings else Settings()
        given = {"model_url": vllm_url, "nats_url": nats_url, "model": model}
        base = base.model_copy(update={name: value for name, value in given.items() if value})
        super().__init__(base.model_dump_json(), agent_id)
        self._base = base
        self._agent_id = agent_id
        self._role = role
        self._workspace_path = workspace_path

    async def run(
        self, task_id: str, task: str, context: str = "", constraints: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        """Solve one task; the result is returned and, with a NATS server, published on `agent.results.<task_id>`.

        Returns:
            task_id, agent_id, success, operations, artifacts, audit_trail, audit_head, usage, stop_reason, error.

        Raises:
            InvalidRequest: No workspace, or a malformed constraint.
            Unavailable: NATS does not answer.
        """
        if not self._workspace_path:
            raise InvalidRequest("this job was made without a workspace", field="workspace_path")
        agent = ToolEnabledAgent(
            self._agent_id,
            self._role,
            self._workspace_path,
            self._base.model_url,
            self._base.model,
            settings=self._base,
        )
        result = await agent.execute_task(task, context, constraints, task_id=task_id)
        payload: dict[str, object] = {
            "kind": "agent",
            "event_id": f"{agent.execution_id}/{self._agent_id}/result",
            "task_id": task_id,
            "execution_id": agent.execution_id,
            "agent_id": self._agent_id,
            "status": str(result.stop_reason),
            **result.to_dict(),
        }
        if self._base.nats_url:
            await self._publish(task_id, agent.execution_id, payload)
        return payload

    async def _publish(self, task_id: str, execution_id: str, payload: Mapping[str, object]) -> None:
        async with connect_log(self._base, name=self._agent_id) as log:
            await log.ensure_streams()
            await log.publish(
                tenant="default",
                task_id=task_id,
                execution_id=execution_id,
                agent_id="",
                payload=json.dumps(payload).encode(),
            )


VLLMAgentJob = cast("type[VLLMAgentJobActor]", ray.remote(VLLMAgentJobActor))  # pyright: ignore[reportUnknownMemberType]
