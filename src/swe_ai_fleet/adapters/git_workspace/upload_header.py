"""The header of a bundle that a stranger sent: read whole, believed in nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from swe_ai_fleet.domain.errors import InvalidRequest

MAX_HEADER_BYTES = 1024 * 1024
MAX_REFS = 10_000
_SIGNATURES = (b"# v2 git bundle", b"# v3 git bundle")
_REF = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) (HEAD|refs/[^\x00-\x20\x7f~^:?*\[\\]{1,240})")
_FORMAT = b"@object-format="


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHeader:
    """What a bundle says that it has: commits (or tags) by the names of refs. Its pack begins at `pack_at`."""

    refs: Mapping[str, str]
    object_format: str
    pack_at: int


def read_upload_header(beginning: bytes) -> UploadHeader:
    """The header at the beginning of a bundle that stands on its own (git's `bundle-format`).

    Raises InvalidRequest where it is none, needs commits that it does not have, or names what is no ref.
    """
    header, blank, _ = beginning[: MAX_HEADER_BYTES + 2].partition(b"\n\n")
    signature, *lines = header.split(b"\n")
    if not blank or signature not in _SIGNATURES:
        raise _refused("this is no git bundle, or one with too many refs")
    refs: dict[str, str] = {}
    object_format = "sha1"
    for line in lines:
        if line.startswith(b"-"):
            raise _refused("the bundle needs commits that are not in it")
        if line.startswith(_FORMAT) and line[len(_FORMAT) :] in (b"sha1", b"sha256"):
            object_format = line[len(_FORMAT) :].decode()
        elif line.startswith(b"@"):
            raise _refused(f"the bundle asks for {line[1:64].decode('ascii', 'replace')!r}, which is not taken")
        else:
            found = _REF.fullmatch(line)
            if found is None or not _sound(found[2]) or len(found[1]) != (64 if object_format == "sha256" else 40):
                raise _refused("the bundle names something that is no ref")
            try:
                refs[found[2].decode()] = found[1].decode()
            except UnicodeDecodeError:
                raise _refused("the bundle names a ref that is not UTF-8") from None
    if not refs or len(refs) > MAX_REFS:
        raise _refused(f"the bundle has {len(refs)} refs")
    return UploadHeader(refs=refs, object_format=object_format, pack_at=len(header) + 2)


def _sound(name: bytes) -> bool:
    """Whether the parts of a ref's name may be names of files, as `git check-ref-format` has it."""
    if b".." in name or b"@{" in name or name.endswith(b"."):
        return False
    return all(part and not part.startswith(b".") and not part.endswith(b".lock") for part in name.split(b"/"))


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(
        reason, field="chunk", hint="make it with the whole history: git bundle create FILE HEAD main"
    )
