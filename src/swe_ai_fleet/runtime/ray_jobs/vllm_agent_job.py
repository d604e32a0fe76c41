"""`VLLMAgentJob`: one Ray actor, one agent."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

import ray

from swe_ai_fleet.agents.results import MAX_INLINE_PATCH_BYTES, bounded_result, failed_result, result_head
from swe_ai_fleet.agents.run_deps import PATCH_MEDIA_TYPE
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.ray_jobs.agent_host import AgentHost
from swe_ai_fleet.runtime.tool_enabled_agent import ToolEnabledAgent
from swe_ai_fleet.settings import Settings

_END_SECONDS = 10.0
"""How long a failed run tries to publish its fault."""


class VLLMAgentJobActor(AgentHost):
    """One agent in one workspace, for callers who schedule agents themselves; `VLLMAgentJob.remote(...)` starts it.

    The fleet uses the same actor, by its `run_assignment`, when each agent has its own actor.

    Args:
        agent_id: The agent's id in events and results.
        role: DEV, QA, ARCHITECT, DEVOPS or DATA.
        vllm_url: Base URL of the model server.
        workspace_path: The clone to work in, used as it is and not removed.
        nats_url: The server for the result; the URL may contain a token (`nats://token@host:port`).
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
        overrides = {"model_url": vllm_url, "nats_url": nats_url, "model": model}
        base = base.model_copy(update={name: value for name, value in overrides.items() if value})
        super().__init__(base.model_dump_json(), agent_id)
        self._base = base
        self._agent_id = agent_id
        self._role = role
        self._workspace_path = workspace_path

    async def run(
        self, task_id: str, task: str, context: str = "", constraints: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        """Solve one task; the result is returned and, with a NATS server, published on `agent.results.<task_id>`.

        The same task again is a further attempt. A fault is published too, as a result with the status `error`, or
        `cancelled`.

        Returns:
            task_id, execution_id, agent_id, status, success, operations, artifacts, audit_trail, audit_head, usage,
            stop_reason, verdict, verdict_reasons, error, duration_ms, timestamp (UTC, ISO 8601).

        Raises:
            InvalidRequest: No workspace, or a malformed constraint.
            Unavailable: NATS does not answer.
        """
        began, agent = time.monotonic(), None
        try:
            if not self._workspace_path:
                raise InvalidRequest("this job has no workspace", field="workspace_path")
            base = self._base
            agent = ToolEnabledAgent(
                self._agent_id, self._role, self._workspace_path, base.model_url, base.model, settings=base
            )
            result = await agent.execute_task(task, context, constraints, task_id=task_id)
        except (Exception, asyncio.CancelledError) as fault:
            status = "cancelled" if isinstance(fault, asyncio.CancelledError) else "error"
            error = self._mask(
                str(fault) if isinstance(fault, FleetError) else f"{type(fault).__name__} {fault}".strip()
            )
            # A run that never began gets an id, too.
            attempt = (agent.execution_id if agent is not None else "") or str(uuid.uuid4())
            payload = failed_result(task_id, attempt, self._agent_id, error, status=status, duration_ms=_since(began))
            # The caller gets the original fault rather than one of publishing it.
            with suppress(FleetError, TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await self._publish(payload)
            raise
        ending = {"status": str(result.stop_reason), "duration_ms": _since(began), "timestamp": now()}
        payload = result_head(task_id, agent.execution_id, self._agent_id) | result.to_dict() | ending
        await self._publish(payload)
        return payload

    async def _publish(self, payload: dict[str, object]) -> None:
        if not self._base.nats_url:
            return
        task_id, execution_id = str(payload["task_id"]), str(payload["execution_id"])
        artifacts = cast("Mapping[str, object]", payload["artifacts"])
        patch = str(artifacts["patch"]).encode()
        async with connect_log(self._base, name=self._agent_id) as log:
            await log.ensure_streams()
            if len(patch) > MAX_INLINE_PATCH_BYTES:
                ref = await log.put(DEFAULT_TENANT, execution_id, patch, PATCH_MEDIA_TYPE)
                payload = payload | {"artifacts": {**artifacts, "patch": to_plain(ref)}}
            await log.publish(
                tenant=DEFAULT_TENANT,
                task_id=task_id,
                execution_id=execution_id,
                agent_id="",
                payload=bounded_result(payload),
            )


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


VLLMAgentJob = cast("type[VLLMAgentJobActor]", ray.remote(VLLMAgentJobActor))
