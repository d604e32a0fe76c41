"""The runner's Jobs or Pods of one namespace as they are now: listed once, then followed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

import structlog

from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.following import waits
from workers.workspace_runner.kubernetes.api import Gone, KubernetesApi
from workers.workspace_runner.kubernetes.endings import Object

_AGAIN_SECONDS = (0.2, 1.0, 5.0, 15.0)
_MAX_GONE = 2_000
_log = structlog.get_logger(__name__)


class Changes:
    """Counts changes, and wakes those who wait for the next one."""

    def __init__(self) -> None:
        self._condition = asyncio.Condition()
        self.count = 0

    async def tell(self) -> None:
        """There was one."""
        self.count += 1
        async with self._condition:
            self._condition.notify_all()

    async def since(self, count: int, seconds: float) -> None:
        """Wait until there were more than `count`, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._condition:
                await self._condition.wait_for(lambda: self.count != count)


class Watched:
    """What a list and a watch make known.

    Args:
        api: Where they are told.
        kind: `jobs` or `pods`.
        namespace: Theirs.
        changes: Told of each; one for all kinds.
    """

    def __init__(self, api: KubernetesApi, kind: str, namespace: str, changes: Changes) -> None:
        self._api = api
        self._kind = kind
        self._namespace = namespace
        self._changes = changes
        self._things: dict[str, Object] = {}
        self._gone: dict[str, Object] = {}
        self.synced = asyncio.Event()

    def get(self, name: str) -> Object | None:
        """The one of that name, if there is one."""
        return self._things.get(name)

    def all(self) -> tuple[Object, ...]:
        """Those that are there."""
        return tuple(self._things.values())

    def with_label(self, label: str, value: str) -> tuple[Object, ...]:
        """Those with a label; the ones that were removed are marked `gone`, as they were last seen."""
        gone = tuple({**thing, "gone": True} for thing in self._gone.values())
        return tuple(one for one in (*self._things.values(), *gone) if _labels(one).get(label) == value)

    async def put(self, thing: Object) -> None:
        """Take in what the server just answered; the watch tells it again."""
        self._things.setdefault(_name(thing), thing)
        await self._changes.tell()

    def forget(self, label: str, value: str) -> None:
        """Forget those removed that have a label."""
        for name in [name for name, thing in self._gone.items() if _labels(thing).get(label) == value]:
            del self._gone[name]

    async def follow(self) -> None:
        """List, then watch; list again where the history has a gap. Runs until it is cancelled."""
        pauses, version = waits(_AGAIN_SECONDS), ""
        while True:
            try:
                if not version:
                    version = await self._list()
                watch = self._api.watch(self._kind, self._namespace, version)
                async with aclosing(watch) as events:
                    async for event, thing in events:
                        pauses, version = waits(_AGAIN_SECONDS), str(thing["metadata"]["resourceVersion"])
                        await self._take(event, thing)
            except Gone:
                version = ""
            except FleetError as fault:
                _log.warning("kubernetes.unwatched", kind=self._kind, namespace=self._namespace, reason=str(fault))
                await asyncio.sleep(next(pauses))

    async def _list(self) -> str:
        things, version = await self._api.list(self._kind, self._namespace)
        found = {_name(thing): thing for thing in things}
        for name in self._things.keys() - found.keys():
            self._remove(name, self._things[name])
        self._things = found
        self.synced.set()
        await self._changes.tell()
        return version

    async def _take(self, event: str, thing: Object) -> None:
        if event == "BOOKMARK":
            return
        if event == "DELETED":
            self._remove(_name(thing), thing)
            self._things.pop(_name(thing), None)
        else:
            self._things[_name(thing)] = thing
        await self._changes.tell()

    def _remove(self, name: str, thing: Object) -> None:
        self._gone[name] = thing
        while len(self._gone) > _MAX_GONE:
            del self._gone[next(iter(self._gone))]


def _name(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def _labels(thing: Object) -> dict[str, str]:
    return dict(thing["metadata"].get("labels") or {})
