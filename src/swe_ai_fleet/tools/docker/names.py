"""What one run has on the engine: its containers and images by the names its agent gave them, and nobody else's."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swe_ai_fleet.tools.docker.engine import Engine, MissingOnEngine
from swe_ai_fleet.tools.docker.owner import Kind, Owner
from swe_ai_fleet.tools.docker.policy import DockerPolicy, canonical, checked_image
from swe_ai_fleet.tools.failure import ToolFailure, ToolRefusal

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")
_TAG = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,60})?")
_MIN_ID_CHARS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A container or an image of the run: the name its agent knows, the engine's id, and what the engine lists."""

    name: str
    id: str
    listed: Mapping[str, Any]


class Names:
    """Names of one run, to and from what the engine calls them."""

    def __init__(self, engine: Engine, owner: Owner, policy: DockerPolicy) -> None:
        self.engine = engine
        self.owner = owner
        self.policy = policy

    async def containers(self) -> list[Entry]:
        """The run's containers, running or not."""
        found: list[Entry] = []
        for listed in await self.engine.containers(self.owner.selector(Kind.CONTAINER)):
            name = str((listed.get("Names") or [listed["Id"][:12]])[0]).lstrip("/")
            found.append(Entry(name=name.removeprefix(f"{self.owner.namespace}-"), id=listed["Id"], listed=listed))
        return found

    async def container(self, name: str) -> Entry:
        """One of the run's containers, by name or by the beginning of its id. Raises ToolFailure."""
        containers = await self.containers()
        found = _named(containers, name)
        if found is None:
            names = ", ".join(entry.name for entry in containers) or "none"
            raise ToolFailure(f"this run has no container {name[:80]!r}; its containers: {names}")
        return found

    async def images(self) -> list[Entry]:
        """The images that were built in this run and have a name."""
        prefix = f"{self.owner.namespace}/"
        return [
            Entry(name=tag.removeprefix(prefix), id=listed["Id"], listed=listed)
            for listed in await self.engine.images(self.owner.selector(Kind.IMAGE))
            for tag in listed.get("RepoTags") or ()
            if tag.startswith(prefix)
        ]

    async def own_image(self, name: str) -> Entry | None:
        """An image built in this run, by name or by the beginning of its id; None where there is none."""
        return _named(await self.images(), name, canonical(name))

    async def image(self, name: str, *, pull: bool = False) -> str:
        """How the engine knows an image that may be used. With `pull`, an allowed one may be missing.

        Raises:
            ToolRefusal: It is neither the run's own nor allowed.
            ToolFailure: It is allowed, but not there.
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
        """What the engine is to call a new container. Raises ToolFailure."""
        if name and not _NAME.fullmatch(name):
            raise ToolFailure("name a container with at most 41 lower-case letters, digits, '-' and '_', such as db")
        return f"{self.owner.namespace}-{name or secrets.token_hex(4)}"

    def tag(self, name: str) -> str:
        """What the engine is to call a new image. Raises ToolFailure."""
        if not _TAG.fullmatch(name) or len(name) > 100:
            raise ToolFailure("tag an image with lower-case letters, digits, '.', '_' and '-', such as app or app:test")
        return f"{self.owner.namespace}/{canonical(name)}"


def _named(entries: list[Entry], *names: str) -> Entry | None:
    for entry in entries:
        if entry.name in names:
            return entry
    wanted = names[0].removeprefix("sha256:")
    if len(wanted) < _MIN_ID_CHARS:
        return None
    found = [entry for entry in entries if entry.id.removeprefix("sha256:").startswith(wanted)]
    return found[0] if len({entry.id for entry in found}) == 1 else None
