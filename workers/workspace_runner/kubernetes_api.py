"""The runner's calls of the Kubernetes API, for Jobs and Pods of its own namespaces."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

from swe_ai_fleet.domain.errors import FleetError, NotFound, PreconditionFailed, ResourceExhausted, Unavailable
from swe_ai_fleet.extensions.kubernetes_jobs.settings import RunnerSettings
from workers.workspace_runner.kubernetes_job import SELECTOR, Object

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CALL_SECONDS = 30.0
_WATCH_SECONDS = 300
_SILENT_SECONDS = 60.0
"""A watch without data for this time after its end counts as dead."""
_TRIES = 4
_MAX_LINE_BYTES = 8 * 1024 * 1024

Call = Callable[[], Awaitable[Any]]


class JobExists(Exception):
    """The Job to create already exists."""


class WatchExpired(Exception):
    """The resource version at which a watch was to begin has expired (410)."""


class KubernetesApi:
    """Calls for Jobs and Pods. Created by `connected`.

    A refusal by the server is PreconditionFailed or ResourceExhausted, a missing answer Unavailable.
    """

    def __init__(self, batch: Any, core: Any) -> None:
        self._batch = batch
        self._core = core

    async def create(self, namespace: str, manifest: Mapping[str, object]) -> Object:
        """Create a Job. Raises JobExists, PreconditionFailed, ResourceExhausted, Unavailable."""
        return await self._json(lambda: self._batch.create_namespaced_job(namespace, manifest, **_raw()))

    async def job(self, namespace: str, name: str) -> Object | None:
        """A Job; None if it does not exist. Raises Unavailable."""
        try:
            return await self._json(lambda: self._batch.read_namespaced_job(name, namespace, **_raw()))
        except NotFound:
            return None

    async def delete(self, namespace: str, name: str) -> None:
        """Delete a Job and its Pods; does nothing if it does not exist. Raises Unavailable."""
        with suppress(NotFound):
            await self._json(
                lambda: self._batch.delete_namespaced_job(name, namespace, propagation_policy="Background", **_raw())
            )

    async def list(self, kind: str, namespace: str) -> tuple[list[Object], str]:  # pyrefly: ignore[not-a-type]
        """The runner's Jobs or Pods in a namespace, and their resource version."""
        answer = await self._json(lambda: self._listing(kind)(namespace, label_selector=SELECTOR, **_raw()))
        return list(answer.get("items") or []), str(answer["metadata"]["resourceVersion"])

    async def watch(self, kind: str, namespace: str, version: str) -> AsyncGenerator[tuple[str, Object]]:
        """Changes from a resource version on, until the server ends the watch. Raises WatchExpired, Unavailable."""
        import aiohttp

        response = await self._answer(
            lambda: self._listing(kind)(
                namespace,
                label_selector=SELECTOR,
                resource_version=version,
                watch=True,
                allow_watch_bookmarks=True,
                timeout_seconds=_WATCH_SECONDS,
                _preload_content=False,
                _request_timeout=aiohttp.ClientTimeout(sock_connect=10, sock_read=_WATCH_SECONDS + _SILENT_SECONDS),
            )
        )
        try:
            async for line in _lines(response):
                event: dict[str, Any] = json.loads(line)
                if event["type"] == "ERROR":
                    raise _fault(int(event["object"].get("code", 500)), event["object"])
                yield str(event["type"]), event["object"]
        except (aiohttp.ClientError, TimeoutError, ValueError) as fault:
            raise Unavailable(f"the watch of {kind} broke off: {type(fault).__name__}") from fault
        finally:
            response.close()

    async def log(self, namespace: str, pod: str, container: str) -> str:
        """The last lines of a container's log; empty where they cannot be read."""
        try:
            response = await self._answer(
                lambda: self._core.read_namespaced_pod_log(
                    pod, namespace, container=container, tail_lines=40, limit_bytes=4_000, **_raw()
                )
            )
            try:
                return (await response.read()).decode("utf-8", "replace")
            finally:
                response.close()
        except (FleetError, WatchExpired, JobExists):
            return ""

    def _listing(self, kind: str) -> Callable[..., Awaitable[Any]]:
        return self._batch.list_namespaced_job if kind == "jobs" else self._core.list_namespaced_pod

    async def _json(self, call: Call) -> Any:
        response = await self._answer(call)
        try:
            return await response.json()
        finally:
            response.close()

    async def _answer(self, call: Call) -> Any:
        """The answer to a call, which is retried while the server is overloaded or unreachable."""
        import aiohttp

        for attempt in range(_TRIES):
            pause = 0.5 * 2**attempt * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
            try:
                response = await call()
                if response.status < 300:
                    return response
                try:
                    body: dict[str, Any] = await response.json(content_type=None) or {}
                except (ValueError, aiohttp.ClientError):
                    body = {}
                finally:
                    response.close()
                fault = _fault(response.status, body)
                if not isinstance(fault, Unavailable):
                    raise fault
                after = response.headers.get("Retry-After", "")
                pause = min(float(after), 30.0) if after.isdigit() else pause
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                fault = Unavailable(f"the Kubernetes API does not answer: {type(error).__name__}")
            if attempt == _TRIES - 1:
                raise fault
            await asyncio.sleep(pause)
        raise AssertionError("the last try raises")


@asynccontextmanager
async def connected(settings: RunnerSettings) -> AsyncGenerator[KubernetesApi]:
    """A client with the Pod's own service account, or a kubeconfig outside of a cluster.

    Raises PreconditionFailed without either.
    """
    try:
        from kubernetes_asyncio import client, config
    except ImportError as fault:
        raise PreconditionFailed(
            "the Kubernetes client is not installed", field="backend", hint="install the extra k8s"
        ) from fault

    configuration = cast("Any", client.Configuration())
    try:
        if settings.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            cast("Any", config).load_incluster_config(client_configuration=configuration)
        else:
            named = str(settings.kubeconfig) if settings.kubeconfig else None
            await cast("Any", config).load_kube_config(config_file=named, client_configuration=configuration)
    except (config.ConfigException, OSError) as fault:
        raise PreconditionFailed(
            f"no cluster is configured: {fault}", field="kubeconfig", hint="set FLEET_RUNNER_KUBECONFIG"
        ) from fault
    async with cast("Any", client).ApiClient(configuration) as connection:
        yield KubernetesApi(cast("Any", client).BatchV1Api(connection), cast("Any", client).CoreV1Api(connection))


def own_namespace(settings: RunnerSettings) -> str:
    """The configured namespace, else that of this Pod, else `default`."""
    if settings.namespace:
        return settings.namespace
    try:
        return (_SERVICE_ACCOUNT / "namespace").read_text().strip() or "default"
    except OSError:
        return "default"


async def _lines(response: Any) -> AsyncGenerator[bytes]:
    """The lines of an answer as they arrive; a line may be longer than a reader's buffer."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > _MAX_LINE_BYTES:
            raise ValueError("a line without an end")


def _fault(status: int, body: Mapping[str, Any]) -> Exception:
    message = str(body.get("message", ""))[:500] or f"HTTP {status}"
    match status:
        case 409:
            return JobExists(message)
        case 410:
            return WatchExpired(message)
        case 404:
            return NotFound(message)
        case 401 | 403 if "exceeded quota" in message:
            return ResourceExhausted(message, hint="raise the namespace's ResourceQuota")
        case 401 | 403:
            return PreconditionFailed(f"the cluster does not allow it: {message}", hint="check the runner's Role")
        case 429:
            return Unavailable(f"the cluster is overloaded: {message}")
        case _ if status >= 500:
            return Unavailable(f"the cluster cannot answer: {message}")
        case _:
            return PreconditionFailed(f"the cluster refuses it: {message}")


def _raw() -> dict[str, object]:
    return {"_preload_content": False, "_request_timeout": _CALL_SECONDS}
