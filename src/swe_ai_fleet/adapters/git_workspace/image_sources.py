"""The names of images in skopeo's form, and images in files.

Those are OCI layouts and `docker save` archives, in a folder or directly from an engine.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import posixpath
import re
import stat
import tarfile
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Literal, cast
from urllib.parse import quote

import httpx2

from swe_ai_fleet.adapters.git_workspace.image_unpacking import CHUNK, UNREADABLE, Header, ImageLimits
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed, ResourceExhausted, Unavailable
from swe_ai_fleet.domain.json_values import mapping, mappings, parse_json, parsed, string, strings

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
    """The parts of an image's name.

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
        pin_parts = {"tag": tagged["tag"] or "", "digest": pinned["digest"] or ""}
        name = tagged["name"]
        if form in ("oci:/", "docker-archive:/"):
            return cls(transport=cast("Transport", form.rstrip(":/")), name=name, **pin_parts)
        if form == "docker-daemon:":
            if not _REPOSITORY.fullmatch(name.removeprefix("localhost/")):
                raise _not_an_image(text)
            return cls(transport="docker-daemon", name=name, **pin_parts)
        host, slash, repository = name.partition("/")
        if not slash or not ("." in host or ":" in host or host == "localhost"):
            host, repository = _HUB, name if slash else f"library/{name}"
        if not _HOST.fullmatch(host) or not _REPOSITORY.fullmatch(repository):
            raise _not_an_image(text)
        return cls(transport="docker", registry=host, name=repository, **pin_parts)

    def pinned(self, digest: str) -> ImageReference:
        return replace(self, digest=digest)

    @property
    def path(self) -> str:
        """The registry and the repository, in the form of the operator's rules."""
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


LARGEST_DOCUMENT = 4 * 1024**2
_MOST_LAYERS = 256
_MOST_MEMBERS = 10_000
_MOST_INDEXES = 3
_ENGINE_SECONDS = 1800.0
_TAG = "org.opencontainers.image.ref.name"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
MACHINE = _MACHINES.get(platform.machine(), platform.machine())
"""This node's architecture, by its name in images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer by its digest, or by its name in an archive. `size` is in bytes, usually compressed."""

    name: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundImage:
    """An image before its layers are fetched. `digest` pins it at its source; `config` is its configuration."""

    digest: str
    config: bytes
    layers: tuple[Layer, ...]


def missing(reason: str, hint: str = "") -> PreconditionFailed:
    return PreconditionFailed(f"the image cannot be had: {reason}", field=FIELD, hint=hint)


def document(data: bytes, digest: str = "") -> object:
    """The JSON of a document with this digest. Raises PreconditionFailed for another digest, or no JSON."""
    if digest and f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise missing(f"what is there as {digest[:19]}… has another digest")
    try:
        return parse_json(data)
    except ValueError:
        raise missing("one of its documents is no JSON") from None


def chosen(index: object, tag: str = "") -> str:
    """The digest of the only manifest in an index with a tag and for this machine. Raises PreconditionFailed."""
    entries = mappings(mapping(index).get("manifests"))
    if tag:
        entries = [entry for entry in entries if mapping(entry.get("annotations")).get(_TAG) == tag]
    platforms = [(mapping(entry.get("platform")), string(entry.get("digest"))) for entry in entries]
    fitting = [
        digest
        for machine, digest in platforms
        if not machine or (machine.get("os") == "linux" and machine.get("architecture") == MACHINE)
    ]
    if not fitting or (len(fitting) > 1 and not all(machine for machine, _ in platforms)):
        matches = f"{len(fitting)} of its {len(entries)} manifests are for linux/{MACHINE}"
        raise missing(f"{matches} and tagged {tag[:128]!r}" if tag else matches, "name a tag that it has")
    return fitting[0]


def contents(manifest: object) -> tuple[str, tuple[Layer, ...]]:
    """The digest of a manifest's configuration, and its layers. Raises PreconditionFailed."""
    config = string(mapping(mapping(manifest).get("config")).get("digest"))
    layers: list[Layer] = []
    for layer in mappings(mapping(manifest).get("layers")):
        size = layer.get("size")
        if not isinstance(size, int) or size < 0:
            raise missing("its manifest names a layer without a size")
        layers.append(Layer(name=string(layer.get("digest")), size=size))
    if not config or not 0 < len(layers) <= _MOST_LAYERS:
        raise missing(f"its manifest names no configuration, or {len(layers)} layers")
    return config, tuple(layers)


def blob_name(digest: str) -> str:
    """The hexadecimal part of a digest. Raises PreconditionFailed for other text."""
    kind, _, name = digest.partition(":")
    if kind != "sha256" or len(name) != 64 or set(name) - set("0123456789abcdef"):
        raise missing(f"{digest[:80]!r} is no sha256 digest")
    return name


def opened(path: Path, folder: Path) -> IO[bytes]:
    """Open a regular file that is, with links resolved, below a folder. Blocking. Raises PreconditionFailed."""
    with suppress(OSError, RuntimeError):
        real = path.resolve(strict=True)
        if real.is_relative_to(folder.resolve()):
            descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return os.fdopen(descriptor, "rb")
            os.close(descriptor)
    raise missing(f"{path.name[:80]} is no file there")


class Files(ABC):
    """An image in files below `folder`, which are read in a thread.

    Sources raise PreconditionFailed, ResourceExhausted, Unavailable, with the field.
    """

    def __init__(self, reference: ImageReference, folder: Path) -> None:
        self._reference = reference
        self._path = Path(reference.name)
        self._folder = folder

    async def pin(self) -> str:
        """The digest of the image that a reference names now."""
        return (await self.find()).digest

    async def find(self) -> FoundImage:
        """The image, with the digest of a pinned reference."""
        return await asyncio.to_thread(self._find)

    async def fetch(self, layer: Layer, target: Path) -> None:
        """Write a layer to a new file, checked against the size and the digest in its manifest."""
        await asyncio.to_thread(self._fetch, layer, target)

    @abstractmethod
    def _find(self) -> FoundImage: ...

    @abstractmethod
    def _fetch(self, layer: Layer, target: Path) -> None: ...


class OciLayout(Files):
    """An OCI image layout, a directory: `index.json` and `blobs/sha256/…`."""

    def _find(self) -> FoundImage:
        digest = self._reference.digest or chosen(document(self._read("index.json")), self._reference.tag)
        for _ in range(_MOST_INDEXES):
            manifest = document(self._read(f"blobs/sha256/{blob_name(digest)}"), digest)
            if "manifests" not in mapping(manifest):
                config, layers = contents(manifest)
                data = self._read(f"blobs/sha256/{blob_name(config)}")
                document(data, config)
                return FoundImage(digest=digest, config=data, layers=layers)
            digest = chosen(manifest)
        raise missing("its indexes lead to indexes")

    def _fetch(self, layer: Layer, target: Path) -> None:
        digest = hashlib.sha256()
        with self._open(f"blobs/sha256/{blob_name(layer.name)}") as source, target.open("xb") as file:
            while data := source.read(CHUNK):
                digest.update(data)
                file.write(data)
                if file.tell() > layer.size:
                    break
        if f"sha256:{digest.hexdigest()}" != layer.name:
            raise missing("a layer has another digest than its manifest names")

    def _read(self, name: str) -> bytes:
        with self._open(name) as file:
            data = file.read(LARGEST_DOCUMENT + 1)
        if len(data) > LARGEST_DOCUMENT:
            raise missing(f"one of its documents has more than {LARGEST_DOCUMENT:,} bytes")
        return data

    def _open(self, name: str) -> IO[bytes]:
        return opened(self._path / name, self._folder)


class Archive(Files):
    """A `docker save` archive. Its layers are only checked against its configuration."""

    def _find(self) -> FoundImage:
        with self._archive() as (archive, members):
            images = mappings(document(_document(archive, members, "manifest.json")))
            if tag := self._reference.tag:
                images = [
                    image
                    for image in images
                    if any(name.rpartition(":")[2] == tag for name in strings(image.get("RepoTags")))
                ]
            if len(images) != 1:
                raise missing(f"{len(images)} images of the archive are meant", "name a tag that one of them has")
            config = _document(archive, members, string(images[0].get("Config")))
            digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
            if self._reference.digest not in ("", digest):
                raise missing("the archive has another image now than the one that was pinned")
            names = strings(images[0].get("Layers"))
            if not 0 < len(names) <= _MOST_LAYERS:
                raise missing(f"the archive names {len(names)} layers")
            layers = tuple(Layer(name=name, size=_content(members, name).size) for name in names)
            return FoundImage(digest=digest, config=config, layers=layers)

    def _fetch(self, layer: Layer, target: Path) -> None:
        with self._archive() as (archive, members), target.open("xb") as file:
            source = archive.extractfile(_content(members, layer.name))
            while source is not None and (data := source.read(CHUNK)):
                file.write(data)

    @contextmanager
    def _archive(self) -> Generator[tuple[tarfile.TarFile, dict[str, tarfile.TarInfo]]]:
        with opened(self._path, self._folder) as file:
            try:
                with parsed(lambda: tarfile.open(fileobj=file, mode="r:", tarinfo=Header)) as archive:
                    yield archive, _members(archive)
            except UNREADABLE as error:
                hint = "as `docker save` and `skopeo copy … docker-archive:` write it, without compression"
                raise missing(f"the archive cannot be read: {error}", hint) from None


def _members(archive: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    members: dict[str, tarfile.TarInfo] = {}
    for _ in range(_MOST_MEMBERS):
        if (member := parsed(archive.next)) is None:
            return members
        members[member.name.removeprefix("./")] = member
    raise missing(f"the archive has more than {_MOST_MEMBERS:,} members")


def _content(members: dict[str, tarfile.TarInfo], name: str) -> tarfile.TarInfo:
    """The file of a name; old archives have each layer once, and links to it."""
    member = members.get(name)
    if member is not None and member.issym():
        member = members.get(posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname)))
    if member is None or not member.isreg() or member.sparse is not None:
        raise missing(f"{name[:128]!r} is no file of the archive")
    return member


def _document(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str) -> bytes:
    member = _content(members, name)
    if member.size > LARGEST_DOCUMENT:
        raise missing(f"one of its documents has more than {LARGEST_DOCUMENT:,} bytes")
    file = archive.extractfile(member)
    return file.read() if file is not None else b""


class EngineImage:
    """An image of a Docker or Podman engine, saved through the engine's socket to the caller's folder `scratch`."""

    def __init__(self, reference: ImageReference, socket: Path, scratch: Path, limits: ImageLimits) -> None:
        self._reference = reference
        self._socket = socket
        self._scratch = scratch
        self._limits = limits
        self._archive: Archive | None = None

    async def pin(self) -> str:
        name = self._reference.digest or f"{self._reference.name}:{self._reference.tag or 'latest'}"
        async with self._client() as client:
            about = await client.get(f"/images/{quote(name)}/json")
        if about.status_code != 200:
            raise missing(f"the engine answers {about.status_code} for {name[:128]!r}", "pull it there first")
        return string(mapping(document(about.content)).get("Id"))

    async def find(self) -> FoundImage:
        digest, path = await self.pin(), self._scratch / "image.tar"
        if self._reference.digest not in ("", digest):
            raise missing("the engine has another image now than the one that was pinned")
        async with self._client() as client, client.stream("GET", f"/images/{quote(digest)}/get") as answer:
            answer.raise_for_status()
            with path.open("xb") as file:
                async for data in answer.aiter_bytes(CHUNK):
                    file.write(data)
                    if file.tell() > self._limits.unpacked_bytes:
                        raise ResourceExhausted("the image is too large", field=FIELD)
        self._archive = Archive(replace(self._reference, name=str(path), tag="", digest=digest), self._scratch)
        return await self._archive.find()

    async def fetch(self, layer: Layer, target: Path) -> None:
        assert self._archive is not None
        await self._archive.fetch(layer, target)

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[httpx2.AsyncClient]:
        transport = httpx2.AsyncHTTPTransport(uds=str(self._socket))
        try:
            async with (
                asyncio.timeout(_ENGINE_SECONDS),
                httpx2.AsyncClient(transport=transport, base_url="http://engine", timeout=60) as client,
            ):
                yield client
        except (httpx2.HTTPError, TimeoutError) as error:
            raise Unavailable(f"the engine of container images does not answer: {error}", field=FIELD) from None
