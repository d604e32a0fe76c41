"""The images of a node: each id is unpacked once, below `images/`, and mounted read-only in workspaces."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.directories import appearing, locked, vanishing
from swe_ai_fleet.adapters.git_workspace.disk_space import TenantDisk
from swe_ai_fleet.adapters.git_workspace.image_registry import Registry, RegistryRules
from swe_ai_fleet.adapters.git_workspace.image_sources import (
    FIELD,
    MACHINE,
    Archive,
    EngineImage,
    FoundImage,
    ImageReference,
    OciLayout,
    document,
    missing,
)
from swe_ai_fleet.adapters.git_workspace.image_unpacking import ImageLimits, Unpacking
from swe_ai_fleet.adapters.git_workspace.locations import TENANT
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.environment import ImageRoot
from swe_ai_fleet.domain.errors import InvalidRequest, ResourceExhausted
from swe_ai_fleet.domain.json_values import mapping, string, strings
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

_Source = OciLayout | Archive | EngineImage | Registry
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)
_NUMBER = re.compile(r"[0-9]{1,9}")
_HOSTS = b"127.0.0.1 localhost fleet\n::1 localhost\n"
_SHELLS = ("bin/bash", "usr/bin/bash", "usr/local/bin/bash")
# The workspace must not be mounted here, since the image's programs need these directories.
_SYSTEM = re.compile(
    r"/|/(?:proc|dev|run|fleet|environment|workspace|tmp|etc|bin|sbin|lib\w*|boot|sys)(?:/.*)?|/home/agent(?:/.*)?|"
    r"/(?:usr|var|opt|home|root|srv|mnt|media)|/usr/(?:local|s?bin|lib\w*)(?:/.*)?|/home/[^/]+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRules:
    """The allowed sources of images; by default none.

    `folders` have layouts and archives (`{tenant}` stands for the caller's), `engine` is the socket of an engine whose
    images every caller may use. `pulled_by_cluster`: Kubernetes starts the containers, with images of registries only.
    """

    registries: RegistryRules = field(default_factory=RegistryRules)
    folders: tuple[Path, ...] = ()
    engine: Path | None = None
    pulled_by_cluster: bool = False
    limits: ImageLimits = field(default_factory=ImageLimits)


class ImageStore:
    """Finds images in allowed sources, and stores their roots below `home`. Safe with other processes."""

    def __init__(self, home: Path, rules: ImageRules, disk: TenantDisk) -> None:
        self._home = home / "images"
        self._scratch = home / "scratch"
        self._rules = rules
        self._disk = disk
        self.pulled_by_cluster = rules.pulled_by_cluster

    async def pin(self, tenant: str, image: str, credential: str = "") -> str:
        """The name with the digest of its current image, asked at its source with the tenant's credential.

        Raises InvalidRequest, PreconditionFailed, Unavailable with the field.
        """
        reference = ImageReference.parse(image)
        if self.pulled_by_cluster and reference.transport != "docker":
            raise InvalidRequest(
                "agents are Kubernetes Jobs, whose nodes pull images of registries only", field=FIELD, hint="docker://…"
            )
        async with self._source(tenant, reference, credential) as source:
            return str(reference.pinned(await source.pin()))

    async def root(self, tenant: str, image: str, credential: str = "") -> ImageRoot:
        """An image's root, unpacked at the first call for its id on this node.

        Raises as `pin`, and ResourceExhausted for too large an image.
        """
        reference = ImageReference.parse(image)
        grant = self._home / "granted" / tenant / hashlib.sha256(f"{reference} {credential}".encode()).hexdigest()
        if reference.digest and (root := await asyncio.to_thread(self._granted, grant)) is not None:
            return root
        async with self._source(tenant, reference, credential) as source:
            found_image = await source.find()
            name = hashlib.sha256(found_image.config).hexdigest()
            self._home.mkdir(parents=True, exist_ok=True)
            async with locked(self._home / f"{name}.lock", timeout_seconds=3600.0):
                if not (self._home / name).is_dir():
                    await self._unpack(name, found_image, source)
            await self._disk.admit(tenant, self._home / name)
        grant.parent.mkdir(parents=True, exist_ok=True)
        grant.write_text(name)
        root = await asyncio.to_thread(self._cached_root, name)
        if root is None:
            raise missing("it was removed meanwhile")
        return root

    def _granted(self, grant: Path) -> ImageRoot | None:
        """The root that this tenant got for the same name before, if it still exists."""
        try:
            return self._cached_root(grant.read_text())
        except FileNotFoundError:
            return None

    def _cached_root(self, name: str) -> ImageRoot | None:
        directory = self._home / name
        try:
            root = from_json(ImageRoot, (directory / "image.json").read_bytes())
            os.utime(directory)
        except FileNotFoundError:
            return None
        return replace(root, path=str(directory / "root"))

    @asynccontextmanager
    async def _source(self, tenant: str, reference: ImageReference, credential: str) -> AsyncGenerator[_Source]:
        """The source of a reference. Raises InvalidRequest where the rules do not allow it."""
        if reference.transport == "docker":
            self._rules.registries.check(reference)
            registry = Registry(reference, self._rules.registries, tenant=tenant, credential=credential)
            async with aclosing(registry):
                yield registry
        elif reference.transport == "docker-daemon":
            if self._rules.engine is None:
                raise InvalidRequest(
                    "images of an engine are not accepted", field=FIELD, hint="the operator names FLEET_IMAGE_ENGINE"
                )
            async with vanishing(self._scratch) as directory:
                yield EngineImage(reference, self._rules.engine, directory, self._rules.limits)
        else:
            folder = await asyncio.to_thread(self._folder, tenant, Path(reference.name))
            yield (OciLayout if reference.transport == "oci" else Archive)(reference, folder)

    def _folder(self, tenant: str, path: Path) -> Path:
        for folder in self._rules.folders:
            allowed = Path(str(folder).replace(TENANT, tenant))
            if path.resolve().is_relative_to(allowed.resolve()):
                return allowed
        raise InvalidRequest(
            f"{str(path)[:128]!r} is in no folder of images",
            field=FIELD,
            hint=f"the operator names FLEET_IMAGE_FOLDERS: {', '.join(map(str, self._rules.folders)) or 'none'}",
        )

    async def _unpack(self, name: str, image: FoundImage, source: _Source) -> None:
        config = mapping(document(image.config))
        machine = f"{string(config.get('os'))}/{string(config.get('architecture'))}"
        if machine != f"linux/{MACHINE}":
            raise missing(f"it is for {machine[:80]}, and this node is linux/{MACHINE}")
        diff_ids = strings(mapping(config.get("rootfs")).get("diff_ids"))
        if len(diff_ids) != len(image.layers):
            raise missing("its configuration names other layers than its manifest")
        limits = self._rules.limits
        if sum(layer.size for layer in image.layers) > limits.compressed_bytes:
            raise ResourceExhausted(f"the image has more than {limits.compressed_bytes:,} bytes", field=FIELD)
        async with vanishing(self._scratch) as fetched, appearing(self._home / name) as draft:
            (draft / "root").mkdir()
            unpacking = Unpacking(draft / "root", limits)
            for number, (layer, diff_id) in enumerate(zip(image.layers, diff_ids, strict=True)):
                file = fetched / str(number)
                await source.fetch(layer, file)
                await uninterrupted(asyncio.to_thread(_unpack_layer, unpacking, file, diff_id))
            await uninterrupted(asyncio.to_thread(_finish, unpacking, draft, name, config))


def _unpack_layer(unpacking: Unpacking, file: Path, diff_id: str) -> None:
    with file.open("rb") as stream:
        unpacking.layer(stream, file.stat().st_size, diff_id)
    file.unlink()


def _finish(unpacking: Unpacking, draft: Path, name: str, config: Mapping[str, object]) -> None:
    """Write the image's settings beside its root, and give it an `/etc/hosts` for loopback, as in any container."""
    settings = mapping(config.get("config"))
    unpacking.write("etc/hosts", _HOSTS)
    user, group = _numbers(unpacking, string(settings.get("User")))
    directory = string(settings.get("WorkingDir")).rstrip("/") or "/"
    is_shown = directory.startswith("/") and not _SYSTEM.fullmatch(directory) and ".." not in directory.split("/")
    variables = (
        match for line in strings(settings.get("Env")) if (match := _VARIABLE.fullmatch(line)) and "\0" not in line
    )
    root = ImageRoot(
        digest=f"sha256:{name}",
        path="",
        user=user,
        group=group,
        directory=directory if is_shown and directory.isprintable() else "",
        shell="bash" if any(map(unpacking.read, _SHELLS)) else "sh",
        variables={match[1]: match[2] for match in variables},
    )
    (draft / "image.json").write_bytes(to_json(root))


def _numbers(unpacking: Unpacking, user: str) -> tuple[int, int]:
    """The ids of a user and its group in an image's notation: a name or a number, either with `:group`."""
    name, _, group_name = user.partition(":")
    accounts = _rows(unpacking.read("etc/passwd"))
    groups = _rows(unpacking.read("etc/group"))
    account = next((row for row in accounts if name in (row[0], row[2])), None) if name else ["root", "", "0", "0"]
    number = account[2] if account else name
    group = account[3] if account and len(account) > 3 else "0"
    if group_name:
        group = next((row[2] for row in groups if row[0] == group_name), group_name)
    if not (_NUMBER.fullmatch(number) and _NUMBER.fullmatch(group)):
        raise missing(f"its user {user[:64]!r} is not among its accounts")
    return int(number), int(group)


def _rows(text: bytes) -> list[list[str]]:
    rows = [line.split(":") for line in text.decode("utf-8", "replace").splitlines()]
    return [row for row in rows if len(row) > 2]
