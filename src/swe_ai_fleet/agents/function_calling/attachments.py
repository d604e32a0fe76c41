"""Attachments of a task: files, pages, pictures."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.agents.prompting import fenced
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.tools.builtin.fetching import Network, download, page_text
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.text import decode
from swe_ai_fleet.tools.http_transport import HttpPolicy, as_text, described, parse_url
from swe_ai_fleet.tools.truncation import beginning

MAX_FILES = 50
MAX_TEXT_CHARS = 50_000
"""The most of one file or page that is sent; the model learns its whole length."""
MAX_ALL_CHARS = 200_000
"""The most of all files and pages of a task together."""
MAX_BYTES = 8 * 1024 * 1024
"""The largest file, page or picture."""
MAX_SECONDS = 30.0
"""The time limit for reading one of them."""
_PICTURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_PICTURE_URL = "data:image/"
_HTML = frozenset({"text/html", "application/xhtml+xml"})
_ACCEPT = "text/html,application/xhtml+xml,image/*,text/*;q=0.9,*/*;q=0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachments:
    """Read files: `sections` of text for the task, `images` as `data:` URLs, a fault for each unreadable one."""

    sections: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def checked_files(files: object) -> list[str | Path]:
    """The files of a request. Raises ValueError unless it is a list of paths and URLs, or None."""
    if files is None:
        return []
    if not isinstance(files, list):
        raise ValueError(f"files is a {type(files).__name__}; give a list of paths and URLs")
    given: list[object] = [*files]
    usable = [file for file in given if isinstance(file, str | Path) and str(file).strip()]
    if len(usable) < len(given):
        raise ValueError("files holds something that is neither a path nor a URL")
    if len(usable) > MAX_FILES:
        raise ValueError(f"files holds {len(usable)} entries; at most {MAX_FILES} are allowed")
    return usable


async def read_attachments(
    files: Sequence[str | Path], *, viewable: bool, policy: HttpPolicy, network: Network
) -> Attachments:
    """Read each path of this machine, `http(s)` URL of a page or picture and `data:` URL of a picture, in order.

    If one cannot be read, its section says so, and there is a fault.
    """
    sections: list[str] = []
    images: list[str] = []
    faults: list[str] = []
    room = MAX_ALL_CHARS
    for file in files:
        name = _name(file)
        try:
            async with asyncio.timeout(MAX_SECONDS):
                content = await _content(str(file), policy, network)
            if not room and not content.startswith(_PICTURE_URL):
                raise ToolFailure(f"the files before it have {MAX_ALL_CHARS} characters already")
        except (FleetError, OSError, ValueError) as error:
            fault = f"{name} could not be read: {_reason(error)}"
            faults.append(fault)
            sections.append(f"## {name}\n[{fault}]")
            continue
        if not content.startswith(_PICTURE_URL):
            sections.append(f"## {name}\n{fenced(beginning(content, min(MAX_TEXT_CHARS, room)))}")
            room -= min(len(content), MAX_TEXT_CHARS, room)
        elif viewable:
            images.append(content)
            sections.append(f"## {name}\n[picture {len(images)} of this message]")
        else:
            sections.append(f"## {name}\n[a picture ({content[5:].partition(';')[0]}), which this model can't view]")
    return Attachments(sections=tuple(sections), images=tuple(images), faults=tuple(faults))


async def _content(file: str, policy: HttpPolicy, network: Network) -> str:
    if file.startswith(_PICTURE_URL):
        if len(file) > 2 * MAX_BYTES:
            raise ToolFailure(f"it has more than {MAX_BYTES} bytes")
        return file
    if file.startswith(("http://", "https://")):
        return await _fetched(file, policy, network)
    data = await asyncio.to_thread(_read, file)
    return _picture(data) or decode(_name(file), data).content


async def _fetched(url: str, policy: HttpPolicy, network: Network) -> str:
    answer = await download(parse_url(url), policy, network, accept=_ACCEPT, max_bytes=MAX_BYTES)
    if picture := _picture(answer.body.data):
        if answer.body.cut:
            raise ToolFailure(f"the picture has more than {MAX_BYTES} bytes")
        return picture
    text = None if answer.body.encoding else as_text(answer.kind, answer.body.data)
    if text is None:
        raise ToolFailure(f"there is no text at this address but {described(answer.kind, answer.body, 'not computed')}")
    if answer.kind.partition(";")[0].strip().lower() not in _HTML:
        return text
    page = await asyncio.to_thread(page_text, text, url=answer.url, max_chars=MAX_TEXT_CHARS)
    return f"{page.title}\n\n{page.text}".strip()


def _read(path: str) -> bytes:
    # Not blocking, so that a named pipe is refused rather than waited for.
    descriptor = os.open(Path(path).expanduser(), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ToolFailure("it is not a regular file")
        if status.st_size > MAX_BYTES:
            raise ToolFailure(f"it has {status.st_size} bytes; at most {MAX_BYTES} are read")
        return file.read(MAX_BYTES)


def _picture(data: bytes) -> str:
    """A picture as a `data:` URL, recognised by its first bytes; empty for anything else."""
    kind = next((kind for magic, kind in _PICTURES if data.startswith(magic)), "")
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind = "image/webp"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}" if kind else ""


def _name(file: str | Path) -> str:
    text = str(file)
    if text.startswith("data:"):
        return "picture"
    if text.startswith(("http://", "https://")):
        # The rest may contain credentials.
        return text.partition("?")[0].partition("#")[0][:500]
    return Path(text).name or text


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"it took longer than {MAX_SECONDS:g} seconds"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error) or type(error).__name__
