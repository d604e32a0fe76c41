"""What a runner is made of, without a cluster: generations, releases, and jobs that are none."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.adapters.jetstream import PermanentError, RetryAfter, WorkMessage
from swe_ai_fleet.codec import to_json, to_plain
from swe_ai_fleet.domain.assignment import AssignmentKind, CodingAssignment
from swe_ai_fleet.domain.job import Job
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.extensions.kubernetes_jobs.settings import RunnerSettings, variables_of
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.runtime.audit_keys import new_key_pem
from swe_ai_fleet.runtime.jobs import JobBoard
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.promql import by_series, expressions, faults
from workers.jobs import ContainerEnding, EndReason, HeldJob, JobRef, JobSpec
from workers.workspace_runner.main import runner_figures
from workers.workspace_runner.runner import Runner, Slots

TASK = Task(task_id="t", kind=TaskKind.DELIBERATE, description="d", repo=RepoRef(location="https://git.example/a"))
REPOSITORY = PinnedRepository(tenant="default", location="https://git.example/a", commit="0" * 40)


@dataclass(kw_only=True)
class Scripted:
    """A backend whose jobs end at once, beside jobs that others have begun."""

    started: list[str] = field(default_factory=list[str])
    stopped: list[str] = field(default_factory=list[str])
    there: tuple[HeldJob, ...] = ()

    async def start(self, spec: JobSpec) -> bool:
        self.started.append(spec.ref.name)
        return True

    async def ended(self, ref: JobRef) -> ContainerEnding:
        return ContainerEnding(reason=EndReason.COMPLETED)

    async def stop(self, ref: JobRef) -> None:
        self.stopped.append(ref.name)

    async def finish(self, ref: JobRef, *, failed: bool) -> None:
        pass

    async def held(self) -> tuple[HeldJob, ...]:
        return self.there


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No outcome comes of these jobs, and none is waited for."""
    monkeypatch.setattr("workers.workspace_runner.runner._OUTCOME_SECONDS", 0.01)


def _runner(backend: Scripted) -> Runner:
    board = JobBoard(MemoryKeyValue(), MemoryLog())
    return Runner(board=board, backend=backend, settings=RunnerSettings(image="a", namespace="b"), slots=Slots(2, 3))


def _job(generation: int = 1, **more: Any) -> Job:
    assignment = CodingAssignment(
        execution_id="e", agent_id="a", task=TASK, repository=REPOSITORY, generation=generation
    )
    return Job(
        job_id=more.pop("job_id", f"j{generation}"), kind=AssignmentKind.RUN, tenant=more.pop("tenant", "default"),
        task_id="t", execution_id="e", agent_id="a", generation=generation, errand=to_plain(assignment) | more,
    )  # fmt: skip


def _message(data: Job | bytes, subject: str = "agent.jobs.default.low") -> WorkMessage:
    body = data if isinstance(data, bytes) else to_json(data)
    return WorkMessage(subject=subject, data=body, headers={}, sequence=1, deliveries=1)


async def test_a_later_generation_ends_the_earlier_one() -> None:
    job = _job(generation=2)
    old = HeldJob(ref=JobRef(name="old", tenant="default"), job_id="j1", run_id=job.run_id, generation=1, ended=False)
    newer = replace(old, ref=JobRef(name="newer", tenant="default"), generation=3)
    other = replace(old, ref=JobRef(name="other", tenant="default"), run_id="x")
    over = replace(old, ref=JobRef(name="over", tenant="default"), ended=True)
    backend = Scripted(there=(old, newer, other, over))
    runner = _runner(backend)
    async with runner.board.watching(), asyncio.timeout(10):
        await runner.handle(_message(job), 2)
    assert (len(backend.started), backend.stopped) == (1, ["old"])


async def test_a_job_of_another_release_is_left_to_a_runner_of_that_unless_it_is_called_off_or_has_begun() -> None:
    runner = _runner(backend := Scripted())
    other = replace(_job(), release="9.9.0+ffffffffffff")
    with pytest.raises(RetryAfter):
        await runner.handle(_message(other), 2)
    assert await runner.board.outcome("default", other.job_id) is None and not backend.started
    await runner.board.request_stop("default", other.job_id)
    await runner.handle(_message(other), 2)
    outcome = await runner.board.outcome("default", other.job_id)
    assert outcome is not None and outcome.fault == "AgentLost"
    # Where no runner of that release is left: what it began is watched to its end, what none began is given up in time.
    began = replace(other, job_id="j8")
    backend.there = (
        HeldJob(ref=JobRef(name="o", tenant="default"), job_id="j8", run_id=began.run_id, generation=1, ended=False),
    )
    async with runner.board.watching(), asyncio.timeout(10):
        await runner.handle(_message(began), 2)
    assert runner.counts.failed == {"Completed": 1}
    given_up = replace(other, job_id="j9")
    for deliveries in (1_199, 1_200):
        with suppress(RetryAfter):
            await runner.handle(replace(_message(given_up), deliveries=deliveries), 2)
        settled = await runner.board.outcome("default", given_up.job_id)
        assert (settled is not None) == (deliveries == 1_200)
    assert settled is not None and "no runner of its release" in settled.message


async def test_what_is_no_job_or_has_somebody_elses_assignment_is_not_begun() -> None:
    backend = Scripted()
    for work, reason in (
        (_message(b"{}"), "not a job"),
        (_message(b"[1"), "not a job"),
        (_message(_job(job_id="../../x")), "job_id"),
        (_message(_job(), "agent.jobs.other.low"), "came in on"),
        (_message(_job(tenant="other")), "came in on"),
    ):
        with pytest.raises(PermanentError, match=reason):
            await _runner(backend).handle(work, 2)
    for job, fault in (
        (replace(_job(), errand={"what": 1}), "InternalFault"),
        (_job(execution_id="another"), "InvalidRequest"),
        (_job(task=to_plain(replace(TASK, tenant="other"))), "InvalidRequest"),
    ):
        runner = _runner(backend)
        async with runner.board.watching(), asyncio.timeout(10):
            await runner.handle(_message(job), 2)
            outcome = await runner.board.outcome("default", "j1")
        assert outcome is not None and outcome.fault == fault
    assert backend.started == []


def test_a_jobs_process_has_the_settings_but_for_the_keys_that_are_the_orchestrators_alone(tmp_path: Path) -> None:
    issuer = tmp_path / "issuer.nk"
    given = Settings(home=tmp_path, audit_signing_key=new_key_pem(), nats_issuer_file=issuer, model="small")
    told = variables_of(given)
    assert (told["FLEET_HOME"], told["FLEET_MODEL"]) == (str(tmp_path), "small")
    assert "PRIVATE KEY" not in str(told) and str(issuer) not in told.values()


def test_dashboards_ask_for_what_a_runner_tells() -> None:
    families = runner_figures(_runner(Scripted()).figures())
    asked = [one for one in expressions() if "fleet_runner_" in one[1]]
    assert faults(asked, by_series(families)) == []
    assert all(family.documentation.endswith(".") for family in families)
