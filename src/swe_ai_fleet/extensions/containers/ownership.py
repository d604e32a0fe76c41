"""Ownership on the engine: labels, the names of one run's containers and images, and removal of leftovers.

An agent reaches the containers and images of its own run only, by the names that it chose.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from swe_ai_fleet.domain.text import utf8
from swe_ai_fleet.extensions.containers.engine import DockerEngine, MissingOnEngine
from swe_ai_fleet.extensions.containers.policy import DockerPolicy, canonical, checked_image
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal

LABEL_PREFIX = "swe-ai-fleet."
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")
_TAG = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,60})?")
_MIN_ID_CHARS = 6
_RETRY_SECONDS = (0.1, 0.3, 0.6, 1.0, 2.0)
"""The engine takes a moment to end an interrupted build, and holds its images until then."""


class OwnedKind(StrEnum):
    """Containers inherit the labels of their image, so each kind has its own labels."""

    CONTAINER = "container"
    IMAGE = "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwningRun:
    """The run that owns containers and images; the tool shows no others.

    `workspace_id` is random, so that two tools in one process share nothing.
    """

    tenant: str = ""
    execution_id: str = ""
    agent_id: str = ""
    workspace_id: str = field(init=False, default_factory=lambda: secrets.token_hex(8))

    @property
    def key(self) -> str:
        """A digest of the four fields, valid in names of images and containers."""
        parts = "\0".join((self.tenant, self.execution_id, self.agent_id, self.workspace_id))
        return hashlib.sha256(utf8(parts)).hexdigest()[:20]

    @property
    def namespace(self) -> str:
        """The prefix of the names of this owner's images and containers."""
        return f"fleet-{self.key}"

    def selector(self, kind: OwnedKind) -> str:
        """The label that marks this owner's objects of a kind."""
        return f"{LABEL_PREFIX}{kind}.owner={self.key}"

    def labels(self, kind: OwnedKind) -> dict[str, str]:
        """All labels of a new container or image."""
        prefix = f"{LABEL_PREFIX}{kind}."
        return {
            f"{prefix}owner": self.key,
            f"{prefix}tenant": self.tenant,
            f"{prefix}execution": self.execution_id,
            f"{prefix}agent": self.agent_id,
            f"{prefix}workspace": self.workspace_id,
            f"{prefix}created-at": datetime.now(UTC).isoformat(timespec="seconds"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedEntry:
    """A container or an image of the run: the agent's name, the engine's id, and the engine's list entry."""

    name: str
    id: str
    listed: Mapping[str, Any]


class OwnedNames:
    """Translates between one run's names and the engine's names."""

    def __init__(self, engine: DockerEngine, owner: OwningRun, policy: DockerPolicy) -> None:
        self.engine = engine
        self.owner = owner
        self.policy = policy

    def short(self, name: str) -> str:
        """The agent's name of a container or an image."""
        return name.removeprefix(f"{self.owner.namespace}/").removeprefix(f"{self.owner.namespace}-")

    async def containers(self) -> list[OwnedEntry]:
        """The run's containers, running or not."""
        entries: list[OwnedEntry] = []
        for listed in await self.engine.containers(self.owner.selector(OwnedKind.CONTAINER)):
            name = str((listed.get("Names") or [listed["Id"][:12]])[0]).lstrip("/")
            entries.append(OwnedEntry(name=self.short(name), id=listed["Id"], listed=listed))
        return entries

    async def container(self, name: str) -> OwnedEntry:
        """One of the run's containers, by name or by the beginning of its id. Raises ToolFailure."""
        containers = await self.containers()
        container = _entry_named(containers, name)
        if container is None:
            names = ", ".join(entry.name for entry in containers) or "none"
            raise ToolFailure(f"this run has no container {name[:80]!r}; its containers: {names}")
        return container

    async def images(self) -> list[OwnedEntry]:
        """The named images that were built in this run."""
        return [
            OwnedEntry(name=self.short(tag), id=listed["Id"], listed=listed)
            for listed in await self.engine.images(self.owner.selector(OwnedKind.IMAGE))
            for tag in listed.get("RepoTags") or ()
            if tag.startswith(f"{self.owner.namespace}/")
        ]

    async def own_image(self, name: str) -> OwnedEntry | None:
        """An image built in this run, by name or by the beginning of its id; None: there is none."""
        return _entry_named(await self.images(), name, canonical(name))

    async def image_only(self, name: str) -> OwnedEntry | None:
        """The run's image of this name; None if there is none, or a container has the name too."""
        image = await self.own_image(name)
        is_container = image is not None and name in {entry.name for entry in await self.containers()}
        return None if is_container else image

    async def image(self, name: str, *, pull: bool = False) -> str:
        """The engine's name of an image that may be used. With `pull`, an allowed one may be missing.

        Raises:
            ToolRefusal: The image is neither the run's own nor allowed.
            ToolFailure: The image is allowed, but missing.
        """
        own = await self.own_image(name)
        if own is not None:
            return f"{self.owner.namespace}/{own.name}"
        image = checked_image(name)
        if not self.policy.allows_image(image):
            allowed = ", ".join(self.policy.images) or "no others"
            built = ", ".join(entry.name for entry in await self.images()) or "none yet"
            raise ToolRefusal(f"the image {image!r} is not allowed; built in this run: {built}; allowed: {allowed}")
        try:
            await self.engine.image(image)
        except MissingOnEngine:
            if not pull:
                raise ToolFailure(f"the engine has no image {image!r}, and images are not fetched here") from None
        return image

    def container_name(self, name: str) -> str:
        """The engine's name of a new container. Raises ToolFailure."""
        if name and not _NAME.fullmatch(name):
            raise ToolFailure("name a container with at most 41 lower-case letters, digits, '-' and '_', such as db")
        return f"{self.owner.namespace}-{name or secrets.token_hex(4)}"

    def tag(self, name: str) -> str:
        """The engine's name of a new image. Raises ToolFailure."""
        if not _TAG.fullmatch(name) or len(name) > 100:
            raise ToolFailure("tag an image with lower-case letters, digits, '.', '_' and '-', such as app or app:test")
        return f"{self.owner.namespace}/{canonical(name)}"


def _entry_named(entries: list[OwnedEntry], *names: str) -> OwnedEntry | None:
    for entry in entries:
        if entry.name in names:
            return entry
    prefix = names[0].removeprefix("sha256:")
    if len(prefix) < _MIN_ID_CHARS:
        return None
    matching = [entry for entry in entries if entry.id.removeprefix("sha256:").startswith(prefix)]
    return matching[0] if len({entry.id for entry in matching}) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedObjects:
    """How many containers and images were removed, and `ID: reason` of each that could not be."""

    containers: int = 0
    images: int = 0
    failures: tuple[str, ...] = ()


async def reap(policy: DockerPolicy, *, executions: Collection[str]) -> RemovedObjects:
    """Remove the containers and images of ended executions.

    Raises ToolFailure if the engine does not answer.
    """
    engine = DockerEngine(policy.host, call_seconds=policy.call_seconds)
    try:
        return await _remove(engine, [item for item in await _leftovers(engine, "") if item[2] in executions])
    finally:
        await engine.close()


async def remove_run(engine: DockerEngine, owner: OwningRun) -> RemovedObjects:
    return await _remove(engine, await _leftovers(engine, f"={owner.key}"))


async def _leftovers(engine: DockerEngine, owner: str) -> list[tuple[OwnedKind, str, str]]:
    """(kind, id, execution) of the objects that an owner left; empty: all owners."""
    items: list[tuple[OwnedKind, str, str]] = []
    for kind, ask in ((OwnedKind.CONTAINER, engine.containers), (OwnedKind.IMAGE, engine.images)):
        for listed in await ask(f"{LABEL_PREFIX}{kind}.owner{owner}"):
            labels: Mapping[str, str] = listed.get("Labels") or {}
            items.append((kind, listed["Id"], labels.get(f"{LABEL_PREFIX}{kind}.execution", "")))
    return items


async def _remove(engine: DockerEngine, items: list[tuple[OwnedKind, str, str]]) -> RemovedObjects:
    first, failures = await _removed([id_ for kind, id_, _ in items if kind is OwnedKind.CONTAINER], engine.remove)
    images, second, pauses = [id_ for kind, id_, _ in items if kind is OwnedKind.IMAGE], 0, iter(_RETRY_SECONDS)
    while images:
        count, refused = await _removed(images, engine.remove_image)
        second += count
        images = list(refused)
        # Base images can be removed once those built on them are gone; if none could be, the rest is in use.
        if images and not count:
            wait = next(pauses, None)
            if wait is None:
                failures |= refused
                break
            await asyncio.sleep(wait)
    reasons = tuple(f"{identifier}: {reason}" for identifier, reason in failures.items())
    return RemovedObjects(containers=first, images=second, failures=reasons)


async def _removed(identifiers: list[str], remove: Callable[[str], Awaitable[None]]) -> tuple[int, dict[str, str]]:
    """How many were removed, and the reason for each other."""
    refused: dict[str, str] = {}
    for identifier in identifiers:
        try:
            await remove(identifier)
        except ToolFailure as failure:
            refused[identifier] = failure.message
    return len(identifiers) - len(refused), refused
