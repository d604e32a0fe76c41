"""`GET /api/executions/{execution_id}/audit`: every agent's audit chain, recomputed from the log."""

from __future__ import annotations

from contextlib import aclosing
from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.gateway.streams.feeds import STREAM_EXECUTION
from services.gateway.streams.following import check_names, number
from services.gateway.streams.messages import json_bytes
from services.gateway.upstream import Upstream, caller_of, method
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.audit_chains import ChainedEntry
from swe_ai_fleet.runtime.audit_keys import PublicKeys
from swe_ai_fleet.watching.audit import Chains, report

PATH = "/api/executions/{execution_id}/audit"
DEFAULT_ENTRIES, MOST_ENTRIES = 100, 500
_SECONDS = 120.0
_GET_EXECUTION = method("fleet.orchestrator.v1.OrchestratorService.GetExecution")


class Audit:
    """Answers with verdicts, and with a page of one agent's entries where an agent is named."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def answer(self, request: Request) -> Response:
        """Answer a request. Raises InvalidRequest, grpc.aio.AioRpcError."""
        check_names(request, ("agent_id", "run", "from", "limit"))
        execution_id, caller = request.path_params["execution_id"], caller_of(request)
        agent_id, run = request.query_params.get("agent_id", ""), number(request, "run", 0)
        first = number(request, "from", 1)
        limit = number(request, "limit", DEFAULT_ENTRIES, least=1, most=MOST_ENTRIES)
        ask = pb.GetExecutionRequest(execution_id=execution_id)
        answer = await self._upstream.call(_GET_EXECUTION, ask, token=caller.token, caller=caller.name)
        reply = cast("pb.GetExecutionResponse", answer)
        last, keys = reply.execution.last_sequence, PublicKeys.of(key.public_key for key in reply.audit_keys)
        chains, page, more = Chains(keys if keys.keys else None), list[ChainedEntry](), False
        stream = self._upstream.stream(
            STREAM_EXECUTION,
            pb.StreamExecutionRequest(execution_id=execution_id),
            token=caller.token,
            caller=caller.name,
            seconds=_SECONDS,
        )
        async with aclosing(stream) as events:
            async for message in events:
                event = cast("pb.ExecutionEvent", message)
                chained = chains.add(event)
                if chained is not None and _matches(chained, agent_id, run, first):
                    more = more or len(page) >= limit
                    page += [chained] if len(page) < limit else []
                if event.sequence >= last:
                    break
        document = {
            "execution_id": execution_id,
            "last_sequence": last,
            **report(chains.verdicts()),
            "entries": [{"run": chained.run, **to_plain(chained.entry)} for chained in page],
            "next_from": page[-1].entry.seq + 1 if more else None,
        }
        return Response(json_bytes(document), media_type="application/json", headers={"cache-control": "no-store"})


def _matches(chained: ChainedEntry, agent_id: str, run: int, first: int) -> bool:
    return bool(agent_id) and chained.agent_id == agent_id and run in (0, chained.run) and chained.entry.seq >= first
