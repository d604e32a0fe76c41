"""Patches judged by a fleet through its public surface: a task that has patches judged, and its log."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import grpc.aio

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from services.orchestrator.main import open_fleet
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry.logs import configure_logging
from swe_ai_fleet.testing.repositories import git

_FURTHER = re.compile(r"|and \d+ more")
Verdict = Literal["verified", "unverified", "refuted"]
SECONDS = 600.0
"""What one judgement may take: a fault that makes many tests hang is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the fleet says of one patch. `broken` are the tests that fail with it and not without."""

    verdict: Verdict
    reasons: tuple[str, ...]
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the fleet says of patches against one commit.

    Attributes:
        patches: By name.
        winner: The name of the best; empty: none.
        passed: Tests that pass on the untouched commit, `failed` those that do not or cannot be collected.
        summary: The baseline in words.
        left_out: What could not be installed.
        usable: Whether the baseline tells anything.
        by_exit_code: Whether it tells only that the test command ends well.
        error: Why nothing could be judged; empty otherwise.
        log: The execution's events: type and payload.
    """

    patches: Mapping[str, Judged]
    winner: str = ""
    passed: int = 0
    failed: int = 0
    summary: str = ""
    left_out: tuple[str, ...] = ()
    usable: bool = False
    by_exit_code: bool = False
    error: str = ""
    log: Sequence[tuple[str, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A running fleet. Made by `open_judges`."""

    stub: pb_grpc.OrchestratorServiceStub
    metadata: tuple[tuple[str, str], ...] = field(repr=False)

    async def judge(self, repository: Path, ref: str, patches: Mapping[str, bytes]) -> Judgement:
        """The fleet's word on patches against a commit; what is known of it after `SECONDS`, where it takes longer."""
        request = pb.JudgePatchesRequest(
            task_id=f"zoo-{uuid.uuid4().hex[:12]}",
            repo=pb.RepoRef(path=str(repository), commit=git(repository, "rev-parse", f"{ref}^{{commit}}")),
            patches=[pb.SubmittedPatch(name=name, diff=diff) for name, diff in patches.items()],
        )
        try:
            accepted = await self.stub.SubmitTask(pb.SubmitTaskRequest(judge=request), metadata=self.metadata)
            events = await self._events(accepted.execution_id)
            asked = pb.GetExecutionRequest(execution_id=accepted.execution_id)
            execution = (await self.stub.GetExecution(asked, metadata=self.metadata)).execution
        except grpc.aio.AioRpcError as error:
            return Judgement(patches={}, error=f"{error.code().name}: {error.details()}")
        usable = [suite for suite in execution.baseline.suites if not suite.unusable]
        suites = [suite for suite in usable if suite.HasField("tests")]
        ends_well = any(suite.HasField("exit_code") and suite.exit_code == 0 for suite in usable)
        baseline: Mapping[str, Any] = next(
            (payload.get("baseline") or {} for kind, payload in events if kind == "baseline_finished"), {}
        )
        ended = execution.status in (pb.DELIBERATION_STATUS_COMPLETED, pb.DELIBERATION_STATUS_NO_WINNER)
        reports = [payload["report"] for kind, payload in events if kind == "checks_finished"]
        return Judgement(
            patches={report["candidate_id"]: _judged(report) for report in reports},
            winner=execution.winner_id,
            passed=sum(suite.tests.passed for suite in suites),
            failed=sum(suite.tests.failed + suite.tests.errors for suite in suites),
            summary=execution.baseline.summary or execution.baseline.error_message,
            left_out=tuple(baseline.get("report", {}).get("left_out", ())),
            usable=bool(suites) or ends_well,
            by_exit_code=ends_well and not suites,
            error="" if ended else execution.error_message or f"not judged within {SECONDS:g} s",
            log=events,
        )

    async def _events(self, execution_id: str) -> list[tuple[str, Any]]:
        """An execution's log up to its end, which is brought about where it takes too long."""
        events: list[tuple[str, Any]] = []
        stream = self.stub.StreamExecution(pb.StreamExecutionRequest(execution_id=execution_id), metadata=self.metadata)
        ends = asyncio.get_running_loop().call_later(SECONDS, stream.cancel)
        try:
            async for event in stream:
                events.append((event.type, json.loads(event.payload_json)))  # noqa: PERF401 - kept if cut off
        except asyncio.CancelledError:
            if not stream.cancelled() or (task := asyncio.current_task()) is None or task.cancelling():
                raise
            cancel = pb.CancelExecutionRequest(execution_id=execution_id, reason="it takes too long")
            await self.stub.CancelExecution(cancel, metadata=self.metadata)
        finally:
            ends.cancel()
        return events


def _judged(report: Mapping[str, Any]) -> Judged:
    broken = [check.get("details", {}).get("new failures", "") for check in report["results"]]
    return Judged(
        verdict=report["verdict"],
        reasons=tuple(report.get("reasons", ())),
        broken=tuple(test for text in broken for test in text.splitlines() if not _FURTHER.fullmatch(test)),
    )


@asynccontextmanager
async def open_judges(home: Path) -> AsyncGenerator[Fleet]:
    """A fleet without a model server. FLEET_SETUP_PRIVATE_HOSTS and the like are taken from the surroundings."""
    settings = Settings(home=home, listen="127.0.0.1:0")
    configure_logging("warning")
    async with open_fleet(settings) as running, grpc.aio.insecure_channel(running.address) as channel:
        token = (("authorization", f"Bearer {running.token}"),)
        yield Fleet(stub=pb_grpc.OrchestratorServiceStub(channel), metadata=token)
