"""The names of images, as skopeo writes them; a digest at the end pins any of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, cast

from swe_ai_fleet.domain.errors import InvalidRequest

FIELD = "environment.container_image"
Transport = Literal["docker", "oci", "docker-archive", "docker-daemon"]
_FORMS = ("docker://", "oci:/", "docker-archive:/", "docker-daemon:")
_PINNED = re.compile(r"(?P<name>.+?)(?:@(?P<digest>sha256:[0-9a-f]{64}))?")
_TAGGED = re.compile(r"(?P<name>.+?)(?::(?P<tag>[\w][\w.-]{0,127}))?", re.ASCII)
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_LONGEST = 512
_HUB = "docker.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageReference:
    """A name taken apart.

    `registry` is the host of `docker://`; `name` is a repository, or the absolute path of a layout or an archive.
    """

    transport: Transport
    name: str
    registry: str = ""
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> ImageReference:
        """Raises InvalidRequest, naming the field."""
        form = next((form for form in _FORMS if text.startswith(form)), "")
        rest = text.removeprefix(form.removesuffix("/") if form != "docker://" else form)
        pinned = _PINNED.fullmatch(rest)
        tagged = _TAGGED.fullmatch(pinned["name"]) if pinned else None
        if pinned is None or tagged is None or len(text) > _LONGEST or not text.isprintable() or " " in text:
            raise _not_an_image(text)
        given = {"tag": tagged["tag"] or "", "digest": pinned["digest"] or ""}
        name = tagged["name"]
        if form in ("oci:/", "docker-archive:/"):
            return cls(transport=cast("Transport", form.rstrip(":/")), name=name, **given)
        if form == "docker-daemon:":
            if not _REPOSITORY.fullmatch(name.removeprefix("localhost/")):
                raise _not_an_image(text)
            return cls(transport="docker-daemon", name=name, **given)
        host, slash, repository = name.partition("/")
        if not slash or not ("." in host or ":" in host or host == "localhost"):
            host, repository = _HUB, name if slash else f"library/{name}"
        if not _HOST.fullmatch(host) or not _REPOSITORY.fullmatch(repository):
            raise _not_an_image(text)
        return cls(transport="docker", registry=host, name=repository, **given)

    def pinned(self, digest: str) -> ImageReference:
        return replace(self, digest=digest)

    @property
    def path(self) -> str:
        """The registry with the repository, as the operator's rules name it."""
        return f"{self.registry}/{self.name}"

    def __str__(self) -> str:
        name = f"docker://{self.path}" if self.transport == "docker" else f"{self.transport}:{self.name}"
        tag, digest = f":{self.tag}" if self.tag else "", f"@{self.digest}" if self.digest else ""
        return name + tag + digest


def _not_an_image(text: str) -> InvalidRequest:
    return InvalidRequest(
        f"{text[:128]!r} names no image",
        field=FIELD,
        hint="python:3.12, registry.example.org/image:tag, oci:/PATH:TAG, docker-archive:/PATH, docker-daemon:NAME",
    )
