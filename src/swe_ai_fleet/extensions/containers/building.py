"""Building an image from a directory of the workspace."""

from __future__ import annotations

import asyncio
import json
import posixpath
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.extensions.containers import dockerfile
from swe_ai_fleet.extensions.containers.containers import ended
from swe_ai_fleet.extensions.containers.engine import Printout
from swe_ai_fleet.extensions.containers.ownership import OwnedKind, OwnedNames
from swe_ai_fleet.extensions.containers.policy import ContainerLimits
from swe_ai_fleet.tools.definition import ToolFailure, time_limit
from swe_ai_fleet.tools.files.packing import IGNORE_FILE, Ignore, pack
from swe_ai_fleet.tools.files.paths import MissingPath, Tree, quoted

_MIB = 1024 * 1024
_CPU_PERIOD = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBuildRequest:
    """A request to build an image: paths as the caller gave them, network and limits already checked."""

    tag: str
    directory: str
    dockerfile: str
    arguments: Mapping[str, str]
    network: str
    limits: ContainerLimits
    target: str = ""
    seconds: float


async def build(names: OwnedNames, root: Path, tree: Tree, request: ImageBuildRequest) -> ToolResult:
    """Build, tag and describe an image. Raises ToolFailure, ToolRefusal."""
    started_at = time.monotonic()
    tag = names.tag(request.tag)
    checked = dockerfile.parse(_text(tree, _below(request.directory, request.dockerfile)), request.arguments)
    checked = checked.until(request.target) if request.target else checked
    images = {entry.name for entry in await names.images()}
    if names.short(tag) not in images and len(images) >= names.policy.max_images:
        raise ToolFailure(f"this run has {len(images)} images, its most; remove one with docker_rm")
    references = {image: await names.image(image, pull=names.policy.pull) for image in sorted(checked.images)}
    labels = names.owner.labels(OwnedKind.IMAGE)
    # Without the time, so that the engine can take the steps of a stage from its cache.
    every = {label: value for label, value in labels.items() if not label.endswith(".created-at")}
    written = checked.text(references, every=every, last=labels)
    name = f".fleet-{secrets.token_hex(8)}.dockerfile"
    packed = await asyncio.to_thread(_packed, names, root, tree, request.directory, name, written)
    printout, error = Printout(names.policy.max_output_bytes), ""
    with packed:
        async with time_limit(request.seconds) as scope:
            params = _params(request, tag, name)
            error = await names.engine.build(packed, printout, params=params, seconds=request.seconds)
    if scope.expired() or printout.flooded:
        return ended("docker_build", printout, code=None, late=scope.expired(), started_at=started_at)
    if error:
        return ToolResult(
            success=False,
            operation="docker_build",
            content=printout.text(),
            error=f"the build failed: {error}",
            outcome=Outcome.ERROR,
            truncated=printout.output.elided > 0,
        )
    built = await names.engine.image(tag)
    short = names.short(tag)
    size = round(built["Size"] / _MIB, 1)
    return ToolResult(
        success=True,
        operation="docker_build",
        content=f"{printout.text()}\nBuilt {short}, {size} MiB. Run it by that name.",
        metadata={"image": short, "id": built["Id"], "size_mib": size},
        truncated=printout.output.elided > 0,
    )


def _text(tree: Tree, path: str) -> str:
    data = tree.read(path, limit=dockerfile.MAX_BYTES).data
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ToolFailure(f"{quoted(path)} is not UTF-8 text") from None


def _packed(names: OwnedNames, root: Path, tree: Tree, directory: str, name: str, written: str) -> IO[bytes]:
    try:
        ignored = _text(tree, _below(directory, IGNORE_FILE))
    except MissingPath:
        ignored = ""
    kind, _, _ = tree.info(real := tree.find(directory))
    if kind != "directory":
        raise ToolFailure(f"{quoted(directory)} is a {kind}; the context of a build is a directory")
    # Keeps the two files that are added here out of `COPY . .`.
    left_out = f"{name}\n{IGNORE_FILE}\n"
    return pack(
        root,
        real,
        ignore=Ignore(ignored),
        extra={name: written.encode(), IGNORE_FILE: left_out.encode()},
        max_bytes=names.policy.max_context_bytes,
        max_files=names.policy.max_context_files,
    )


def _params(request: ImageBuildRequest, tag: str, name: str) -> dict[str, str]:
    memory = str(request.limits.memory_mb * _MIB)
    return {
        "t": tag,
        "dockerfile": name,
        "buildargs": json.dumps(dict(request.arguments)),
        "networkmode": request.network,
        "memory": memory,
        "memswap": memory,
        "cpuperiod": str(_CPU_PERIOD),
        "cpuquota": str(round(request.limits.cpus * _CPU_PERIOD)),
        "rm": "1",
        "forcerm": "1",
    }


def _below(directory: str, path: str) -> str:
    return path if path.startswith("/") else posixpath.join(directory, path)
