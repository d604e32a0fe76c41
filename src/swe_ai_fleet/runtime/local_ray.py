"""Ray for this process: a private cluster, or the one in the settings."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import ray
import structlog
from ray import _raylet
from ray._private import node as ray_node
from ray._private import ray_constants as constants
from ray._private import services

from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.following import in_background
from swe_ai_fleet.settings import Settings

OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Small on purpose: only assignments and candidates cross it, large content goes to the blob store."""
_LOCAL_HOSTS = 1_000
"""How many agent hosts a private cluster has room for, if the settings give the resources of one."""
_LOOK_SECONDS = 5.0
_LINES_SECONDS, _QUIET_SECONDS, _MOST_BYTES = 0.5, 4.0, 1024 * 1024
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NAMESPACE = "swe-ai-fleet"
_NOBODYS_PORT = 1
# A shell, because the raylet appends arguments of its own.
_IDLE = "/bin/sh -c 'exec cat'"
_SHORT, _PREFIX, _OWNER = Path("/tmp"), "fleet-ray-", "owner.lock"  # noqa: S108
_PRIVATE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_DEDUP_LOGS": "0",
    # Events of calls, which only a dashboard shows: up to 100,000 of them in memory.
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_timeline": "0",
    # As on a laptop: the one node has the loopback address, and its processes listen there. Otherwise Ray replaces
    # 127.0.0.1 by the machine's network address, and listens on every interface.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # A worker starts before its first actor: it imports agent hosts' modules while the rest of the fleet starts.
    "RAY_preload_python_modules": "swe_ai_fleet.runtime.ray_jobs.agent_host,swe_ai_fleet.runtime.agent_worker",
    # No page of the autoscaler: it requires no token, and there is nothing to scale. Port -1 cannot be opened.
    "AUTOSCALER_METRIC_PORT": "-1",
}
_log = structlog.get_logger()


class _BareNode(ray_node.Node):
    """A node without the five processes for people and further nodes, which take seconds and 150 MiB."""

    def start_raylet(self, *args: Any, **options: Any) -> None:
        """Start a raylet whose two agents, for metrics and for runtime environments, are idle processes.

        The raylet ends with either of them, so two processes must exist; they read standard input until the raylet is
        gone. Their ports must be in its files: a port that only root may open, and that nobody listens on.
        """
        node, vendor = cast("Any", self), cast("Any", services)
        for name in ("dashboard_agent_listen", "metrics_agent", "metrics_export", "runtime_env_agent"):
            cast("Any", _raylet).persist_port(node._session_dir, node._node_id, f"{name}_port", _NOBODYS_PORT)
        start = vendor.start_ray_process

        def start_bare(command: list[str], *rest: Any, **more: Any) -> Any:
            bare = [f"{word[: word.index('=')]}={_IDLE}" if "_agent_command=" in word else word for word in command]
            return start(bare, *rest, **more)

        vendor.start_ray_process = start_bare
        try:
            super().start_raylet(*args, **options)
        finally:
            vendor.start_ray_process = start

    def start_monitor(self) -> None:
        """No autoscaler: there is nothing to scale."""

    def start_log_monitor(self) -> None:
        """`_log_lines` reads what workers log."""

    def start_api_server(self, **_: object) -> None:
        """No dashboard."""
        self._webui_url = ""


@contextmanager
def ray_connection(settings: Settings) -> Generator[None]:
    """Initialise Ray until the context ends. Raises Unavailable when the cluster in the settings does not answer.

    Without an address a private cluster is started. Its processes listen on loopback, where a random token keeps out
    other users of the machine; it dies with this process, as do its actors.
    """
    if settings.ray_address:
        if settings.ray_token:
            _log_in(settings.ray_token)
        try:
            ray.init(
                address=settings.ray_address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.ERROR
            )
        except ConnectionError as error:
            raise Unavailable(
                f"the Ray cluster does not answer: {error}",
                field="ray_address",
                hint="check FLEET_RAY_ADDRESS, and FLEET_RAY_TOKEN where it asks for one",
            ) from error
        with _until_the_end():
            yield
        return
    # A short path, whatever TMPDIR is: Ray puts sockets there, whose paths may have at most 107 bytes.
    _remove_leftovers()
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_SHORT))
    owned = _own(directory)
    os.environ.update(_PRIVATE)
    _log_in(secrets.token_hex(32))
    # Ray reads these variables at its import, which may have been before they were set.
    clusters = bool(constants.ENABLE_RAY_CLUSTER)
    constants.ENABLE_RAY_CLUSTER = False
    whole = ray_node.Node
    ray_node.Node = _BareNode
    try:
        # Without the address "local" Ray would join a cluster that a stale file names.
        ray.init(
            "local",
            namespace=_NAMESPACE,
            num_cpus=1,
            resources={name: amount * _LOCAL_HOSTS for name, amount in settings.ray_resources.items()} or None,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(directory),
        )
        with _until_the_end():
            yield
    finally:
        ray_node.Node = whole
        constants.ENABLE_RAY_CLUSTER = clusters
        shutil.rmtree(directory, ignore_errors=True)
        os.close(owned)


@asynccontextmanager
async def ray_started(settings: Settings) -> AsyncGenerator[None]:
    """`ray_connection` as an asynchronous context, with the lines that its workers log.

    Enter it before a process's first gRPC server, since starting Ray blocks the loop, and forks. It does nothing where
    agents are Kubernetes Jobs, or where Ray is initialised already.
    """
    if settings.executor == "kubernetes" or ray.is_initialized():
        yield
        return
    with ray_connection(settings):
        logs = None if settings.ray_address else Path(cast("Any", ray)._private.worker._global_node.get_logs_dir_path())
        async with in_background(*((_log_lines(logs),) if logs else ()), name="ray-log-lines"):
            yield


async def _log_lines(logs: Path) -> None:
    """Copy the log lines of a private cluster's hosts to standard error: Ray deletes their files with the cluster."""
    ends: dict[Path, int] = {}
    pause = _LINES_SECONDS
    try:
        while True:
            await asyncio.sleep(pause)
            pause = _LINES_SECONDS if _copy_lines(logs, ends) else min(2 * pause, _QUIET_SECONDS)
    finally:
        _copy_lines(logs, ends)


def _copy_lines(logs: Path, ends: dict[Path, int]) -> bool:
    """Copy new lines; returns whether there were any."""
    before = sum(ends.values())
    for path in logs.glob("worker-*.err"):
        with suppress(OSError), path.open("rb") as file:
            file.seek(ends.get(path, 0))
            data = file.read(_MOST_BYTES)
            # A line of more than `_MOST_BYTES` is copied in parts.
            whole = data[: data.rfind(b"\n") + 1] or (data if len(data) == _MOST_BYTES else b"")
            ends[path] = ends.get(path, 0) + len(whole)
            # Lines that begin with a colon are for Ray's own log monitor. Quoted text must not control a terminal.
            lines = _CONTROLS.sub("?", whole.decode(errors="replace")).split("\n")
            shown_lines = [line for line in lines if line and line[0] != ":"]
            print(*shown_lines, sep="\n", end="\n" if shown_lines else "", file=sys.stderr, flush=True)
    return sum(ends.values()) > before


@asynccontextmanager
async def ray_watched(settings: Settings, lost: Callable[[], None]) -> AsyncGenerator[None]:
    """Call `lost` when the cluster's node that this process is connected to is gone; watch until the context ends.

    A driver cannot reconnect to a restarted node, so its process must restart, too. A private cluster is not watched:
    it ends with this process.
    """
    if not settings.ray_address or not ray.is_initialized():
        yield
        return
    own_node = ray.get_runtime_context().get_node_id()
    async with in_background(_watch(lambda: _alive(own_node), lost), name="ray-node"):
        yield


async def _watch(alive: Callable[[], bool], lost: Callable[[], None]) -> None:
    try:
        while await asyncio.to_thread(alive):  # noqa: ASYNC110 - Ray sends no notification
            await asyncio.sleep(_LOOK_SECONDS)
        _log.error("the Ray node of this process has gone")
    except Exception:  # noqa: BLE001 - nobody awaits this task, and an unreachable Ray is as lost as a dead one
        _log.exception("Ray does not list its nodes")
    lost()


def _alive(node_id: str) -> bool:
    return any(node["Alive"] and node["NodeID"] == node_id for node in ray_nodes())


def ray_nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster, dead ones included."""
    return cast("list[dict[str, Any]]", ray.nodes())


def _log_in(token: str) -> None:
    """Authenticate this process and its children to Ray with a token."""
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
    # Ray reads its environment at its import, which may have been before the token was set.
    native = cast("Any", _raylet)
    native.Config.initialize("")
    native.AuthenticationTokenLoader.instance().reset_cache()


def _own(directory: Path) -> int:
    """Lock a directory for the lifetime of this process; returns the descriptor that holds the lock."""
    draft = directory / f".{_OWNER}"
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    # Renamed when it is locked: another starting process removes directories with an unlocked file as leftovers.
    draft.rename(directory / _OWNER)
    return descriptor


def _remove_leftovers() -> None:
    """Remove the directories that killed processes' private clusters left."""
    for owner in _SHORT.glob(f"{_PREFIX}*/{_OWNER}"):
        with suppress(OSError), owner.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(owner.parent, ignore_errors=True)


@contextmanager
def _until_the_end() -> Generator[None]:
    try:
        yield
    finally:
        ray.shutdown()
