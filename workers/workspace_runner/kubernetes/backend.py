"""Jobs as Kubernetes Jobs: made, watched, and removed when they are done with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.settings import Settings
from workers.workspace_runner.backend import Ending, EndReason, HeldJob, JobRef, JobSpec
from workers.workspace_runner.kubernetes.api import Conflict, KubernetesApi, connected, own_namespace
from workers.workspace_runner.kubernetes.endings import Object, Trouble, ending, finished, trouble, unexplained
from workers.workspace_runner.kubernetes.manifest import AGENT, CLONE, PREFIX, job_manifest
from workers.workspace_runner.kubernetes.watching import Changes, Watched
from workers.workspace_runner.settings import RunnerSettings

_JOB_NAME = "job-name"
"""The label that every Pod of a Job has with its name."""
_LOOK_SECONDS = 5.0
_TOLD_SECONDS = 2.0
"""Within so long the end of a Pod is told, where that of its Job is."""


class KubernetesBackend:
    """Runs each job as a Kubernetes Job. Made by `open_kubernetes`.

    What runs in the cluster goes on when this process ends; its names are those of the jobs, so that another runner
    finds it again.
    """

    def __init__(self, api: KubernetesApi, settings: RunnerSettings, *, nats_url: str, model_url: str) -> None:
        self._api = api
        self._settings = settings
        self._nats_url = nats_url
        self._model_url = model_url
        self._changes = Changes()
        namespaces = {settings.namespace, *settings.tenant_namespaces.values()}
        self._jobs = {name: Watched(api, "jobs", name, self._changes) for name in namespaces}
        self._pods = {name: Watched(api, "pods", name, self._changes) for name in namespaces}

    @property
    def watches(self) -> tuple[Watched, ...]:
        """What is listed and followed."""
        return (*self._jobs.values(), *self._pods.values())

    async def start(self, spec: JobSpec) -> bool:
        """Make a Job; False where there is one of its name already. Raises PreconditionFailed, Unavailable."""
        manifest = job_manifest(spec, self._settings, nats_url=self._nats_url, model_url=self._model_url)
        namespace = self._namespace(spec.ref)
        try:
            made = await self._api.create(namespace, manifest)
        except Conflict:
            return False
        await self._jobs[namespace].put(made)
        return True

    async def ended(self, ref: JobRef) -> Ending:
        """Wait until a Job has ended, is gone, or cannot begin within the time that it may take."""
        namespace = self._namespace(ref)
        jobs, pods = self._jobs[namespace], self._pods[namespace]
        await jobs.synced.wait()
        await pods.synced.wait()
        since: tuple[EndReason, float] | None = None
        now = asyncio.get_running_loop().time
        while True:
            count = self._changes.count
            job = jobs.get(ref.name)
            if job is None and (job := await self._api.job(namespace, ref.name)) is None:
                return Ending(reason=EndReason.DELETED, message="somebody removed the Job")
            mine = pods.with_label(_JOB_NAME, ref.name)
            over = ending(job, mine)
            if over is not None:
                return await self._with_log(namespace, over, mine)
            # A Job that has failed may be told of before its Pod is.
            lost = unexplained(job)
            found = lost or trouble(mine)
            patience = _TOLD_SECONDS if lost else self._patience(found) if found else _LOOK_SECONDS
            if found is None:
                since = None
            elif since is None or since[0] is not found.reason:
                since = found.reason, now()
            elif now() - since[1] >= patience:
                return Ending(reason=found.reason, message=found.message)
            # Most changes are told; a look now and then is what deadlines, and a deaf watch, need.
            await self._changes.since(count, min(_LOOK_SECONDS, patience))

    async def stop(self, ref: JobRef) -> None:
        """Remove a Job; its Pods are told to end."""
        namespace = self._namespace(ref)
        await self._api.delete(namespace, ref.name)
        self._pods[namespace].forget(_JOB_NAME, ref.name)

    async def finish(self, ref: JobRef, *, failed: bool) -> None:
        """Remove a Job that is done; one that failed is left to its time to live, once it has ended."""
        namespace = self._namespace(ref)
        job = self._jobs[namespace].get(ref.name)
        if failed and self._settings.keep_seconds and job is not None and finished(job):
            self._pods[namespace].forget(_JOB_NAME, ref.name)
            return
        await self.stop(ref)

    async def held(self) -> tuple[HeldJob, ...]:
        """The runner's Jobs in all of its namespaces."""
        for jobs in self._jobs.values():
            await jobs.synced.wait()
        return tuple(_held(job) for jobs in self._jobs.values() for job in jobs.all())

    def _namespace(self, ref: JobRef) -> str:
        return self._settings.namespace_of(ref.tenant)

    def _patience(self, found: Trouble) -> float:
        match found.reason:
            case EndReason.UNSCHEDULABLE:
                return self._settings.schedule_deadline_seconds
            case EndReason.NODE_LOST:
                return 2.0 * self._settings.grace_seconds
            case _:
                return self._settings.pull_deadline_seconds

    async def _with_log(self, namespace: str, over: Ending, pods: tuple[Object, ...]) -> Ending:
        """The ending with what its container printed last, as long as that can be had."""
        there = [pod for pod in pods if not pod.get("gone")]
        if over.log or over.reason is EndReason.COMPLETED or not there:
            return over
        container = CLONE if over.reason is EndReason.CLONE else AGENT
        return replace(over, log=await self._api.log(namespace, str(there[-1]["metadata"]["name"]), container))


@asynccontextmanager
async def open_kubernetes(settings: Settings, chosen: RunnerSettings) -> AsyncGenerator[KubernetesBackend]:
    """Connect to the cluster and follow what is the runner's there, until the context ends; Jobs are left to run.

    Raises InvalidRequest, PreconditionFailed, Unavailable.
    """
    if not chosen.image:
        raise InvalidRequest("no image is set", field="image", hint="set FLEET_RUNNER_IMAGE")
    chosen = chosen.model_copy(update={"namespace": own_namespace(chosen)})
    async with connected(chosen) as api:
        backend = KubernetesBackend(api, chosen, nats_url=settings.nats_url, model_url=settings.model_url)
        # What the first list meets (no right to it, say) is told at once.
        for namespace in {chosen.namespace, *chosen.tenant_namespaces.values()}:
            await api.list("jobs", namespace)
            await api.list("pods", namespace)
        following = [asyncio.create_task(watched.follow(), name="kubernetes watch") for watched in backend.watches]
        try:
            yield backend
        finally:
            for one in following:
                one.cancel()
            await asyncio.gather(*following, return_exceptions=True)


def _held(job: Object) -> HeldJob:
    metadata = cast("dict[str, Any]", job["metadata"])
    labels = cast("dict[str, str]", metadata["labels"])
    tenant = cast("dict[str, str]", metadata["annotations"])[f"{PREFIX}tenant"]
    return HeldJob(
        ref=JobRef(name=str(metadata["name"]), tenant=tenant),
        job_id=str(labels[f"{PREFIX}job"]),
        run_id=str(labels[f"{PREFIX}run"]),
        generation=int(labels[f"{PREFIX}generation"]),
        ended=finished(job),
    )
