"""The page's files, as they were built."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from services.gateway.problems import Refusal

DIRECTORY = Path(__file__).resolve().parent.parent / "page"
_INDEX = "index.html"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
_PACKED = frozenset({".html", ".js", ".css", ".svg", ".txt", ".webmanifest"})
_LEAST_PACKED = 1_024
"""Bytes; what is smaller gains nothing."""
_NOT_BUILT = """The page of this gateway has not been built: there is no index.html in services/gateway/page.

Build it from web/ with `npm ci` and `npm run build`. The API under /api works without it; see /api/openapi.json.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asset:
    """A file; `packed` is the same in gzip, None where that would be no smaller."""

    content: bytes
    media_type: str
    tag: str
    packed: bytes | None = None


class Page:
    """Serves one directory without directories in it: names that it has, and nothing else.

    A file is read when it is asked for, so that a new build is seen at once.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], _Asset]] = {}

    async def answer(self, request: Request) -> Response:
        """A file, or for any other path of the page's own the page itself. Raises Refusal."""
        if request.method not in ("GET", "HEAD"):
            raise Refusal(
                405,
                f"{request.method} is not allowed here",
                hint="the API is under /api",
                headers={"Allow": "GET, HEAD"},
            )
        name = request.url.path.removeprefix("/") or _INDEX
        asset = await asyncio.to_thread(self._read, name)
        if asset is None and "text/html" in request.headers.get("accept", ""):
            asset, name = await asyncio.to_thread(self._read, _INDEX), _INDEX
        if asset is None:
            if name == _INDEX:
                return PlainTextResponse(_NOT_BUILT, 404)
            raise Refusal(404, "file not found", hint="the API is under /api")
        # Names stay the same from build to build, so that every use asks whether the file does too.
        content, tag = asset.content, asset.tag
        headers = {"cache-control": "no-cache"}
        if asset.packed is not None:
            headers["vary"] = "Accept-Encoding"
            if _takes_gzip(request.headers.get("accept-encoding", "")):
                # The page's files are the same for everybody: nothing in them is a secret that their size could tell.
                # Other bytes are another representation (RFC 9110, 8.8.3.3).
                content, tag = asset.packed, f'{asset.tag[:-1]}-gzip"'
                headers["content-encoding"] = "gzip"
        headers["etag"] = tag
        etags = request.headers.get("if-none-match", "")
        if tag in (etag.strip().removeprefix("W/") for etag in etags[:1000].split(",")):
            headers.pop("content-encoding", None)
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=asset.media_type, headers=headers)

    def _read(self, name: str) -> _Asset | None:
        path = DIRECTORY / name
        if not _NAME.fullmatch(name) or path.suffix not in _TYPES or path.is_symlink():
            return None
        try:
            state = path.stat()
            stamp = (state.st_mtime_ns, state.st_size)
            cached = self._known.get(name)
            if cached is not None and cached[0] == stamp:
                return cached[1]
            content = path.read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            return None
        asset = _Asset(
            content=content,
            media_type=_TYPES[path.suffix],
            tag=f'"{hashlib.sha256(content).hexdigest()[:32]}"',
            packed=_packed(content) if path.suffix in _PACKED else None,
        )
        self._known[name] = (stamp, asset)
        return asset


def _packed(content: bytes) -> bytes | None:
    """The content in gzip, the same bytes whenever it is made; None where that is not worth it."""
    if len(content) < _LEAST_PACKED:
        return None
    packed = gzip.compress(content, compresslevel=9, mtime=0)
    return packed if len(packed) < len(content) else None


def _takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding names gzip, or everything, and not with a weight of 0 (RFC 9110, 12.5.3)."""
    weights: dict[str, bool] = {}
    for part in accepted[:1000].lower().split(","):
        name, _, weight = part.partition(";")
        weights[name.strip()] = re.fullmatch(r"\s*q\s*=\s*0(\.0{0,3})?\s*", weight) is None
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", False)))
