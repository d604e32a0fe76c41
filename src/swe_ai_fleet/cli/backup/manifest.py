"""What a backup says of itself: `manifest.json`, written last, so that what has one is whole."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from swe_ai_fleet.domain.errors import NotFound, PreconditionFailed

NAME = "manifest.json"
FORMAT = 1
_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One stream's snapshot: the file beside the manifest, its size and digest, and how the stream stood."""

    file: str
    size: int
    sha256: str
    config: dict[str, Any]
    messages: int
    bytes: int
    first_sequence: int
    last_sequence: int
    consumers: int
    began_at: str
    ended_at: str

    @property
    def name(self) -> str:
        return str(self.config.get("name", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A backup. `streams` stand in the order in which they were taken, which is what makes it consistent."""

    format: int
    fleet_version: str
    nats_version: str
    made_at: str
    streams: tuple[Saved, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one.size for one in self.streams)


_MANIFEST = TypeAdapter(Manifest)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a backup. Raises NotFound, PreconditionFailed."""
    path = directory / NAME
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise NotFound(
            f"{directory} holds no whole backup: {error.strerror}", field="directory", hint=f"it has a {NAME}"
        ) from error
    try:
        manifest = _MANIFEST.validate_json(content)
    except ValidationError as error:
        raise PreconditionFailed(f"{path} cannot be read: {error.errors()[0]['msg']}", field="directory") from error
    if manifest.format != FORMAT:
        raise PreconditionFailed(
            f"the backup has format {manifest.format}, this version reads {FORMAT}",
            field="directory",
            hint=f"restore it with swe-ai-fleet {manifest.fleet_version}",
        )
    for one in manifest.streams:
        if not one.name or Path(one.file).name != one.file or one.file in ("", ".", "..", NAME):
            raise PreconditionFailed(f"{path} names a file {one.file[:64]!r}", field="directory")
    return manifest


def manifest_bytes(manifest: Manifest) -> bytes:
    """What stands in the file."""
    return (json.dumps(asdict(manifest), indent=2) + "\n").encode()
