"""The public keys of an issuer (RFC 7517), from a file or an https URL, kept fresh."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import structlog

from swe_ai_fleet.domain.errors import Unavailable

FRESH_SECONDS = 600.0
"""After so long the keys are asked for again: one that was withdrawn is taken no longer than that."""
LEAST_SECONDS = 30.0
"""Between two requests, however many tokens name keys that are not known."""
TIMEOUT_SECONDS = 5.0
MAX_BYTES = 256 * 1024
MAX_KEYS = 100

Jwk = Mapping[str, Any]
_log = structlog.get_logger(__name__)


class KeySet:
    """Keys by their id.

    While the place does not answer, or has nothing that can be read, the keys that were there last go on counting.

    Args:
        place: A path, or an https URL.
        ca: PEM file of the authority that signed the URL's certificate; None: one that the system trusts.
        clock: Seconds that never go back.
    """

    def __init__(self, place: str, *, ca: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._ca = ca
        self._clock = clock
        self._keys: tuple[Jwk, ...] = ()
        self._tried_at: float | None = None
        self._read_at: float | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._reading = asyncio.Lock()

    async def find(self, key_id: str | None) -> Jwk | None:
        """The key of that id; without an id the only key there is. None: there is no such key.

        Raises:
            Unavailable: No keys have been had yet.
        """
        if self._stale():
            await self._refresh(unless=lambda: not self._stale())
        found = self._find(key_id)
        if found is None:
            await self._refresh(unless=lambda: self._find(key_id) is not None)
            found = self._find(key_id)
        if found is None and self._read_at is None:
            raise Unavailable("the keys of the token's issuer cannot be had", hint="the server's log says why")
        return found

    def _find(self, key_id: str | None) -> Jwk | None:
        fitting = [key for key in self._keys if key_id is None or key.get("kid") == key_id]
        return fitting[0] if len(fitting) == 1 else None

    def _stale(self) -> bool:
        return self._read_at is None or self._clock() - self._read_at > FRESH_SECONDS

    async def _refresh(self, *, unless: Callable[[], bool]) -> None:
        async with self._reading:
            # Whoever waited here finds what the one before brought.
            tried = self._tried_at
            if unless() or (tried is not None and self._clock() - tried < LEAST_SECONDS):
                return
            self._tried_at = self._clock()
            try:
                data = await self._fetched() if "://" in self._place else await asyncio.to_thread(self._from_file)
                self._keys = parse_keys(data)
                self._read_at = self._clock()
            except (OSError, ValueError) as error:
                _log.error(
                    "the keys of an issuer cannot be read; those known so far go on counting",
                    place=self._place,
                    known=len(self._keys),
                    error=str(error) or type(error).__name__,
                )

    def _from_file(self) -> bytes:
        with Path(self._place).open("rb") as file:
            return file.read(MAX_BYTES + 1)

    async def _fetched(self) -> bytes:
        import httpx2

        ca = str(self._ca) if self._ca else None
        trusted = await asyncio.to_thread(ssl.create_default_context, cafile=ca)
        try:
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
                httpx2.AsyncClient(verify=trusted, trust_env=False, follow_redirects=False) as client,
                client.stream("GET", self._place, headers={"accept": "application/json"}) as answer,
            ):
                if answer.status_code != 200:
                    raise ValueError(f"the answer is {answer.status_code}")
                data = bytearray()
                async for piece in answer.aiter_bytes():
                    data += piece
                    if len(data) > MAX_BYTES:
                        break
                return bytes(data)
        except httpx2.HTTPError as error:
            raise OSError(str(error) or type(error).__name__) from error


def place_of(folder: Path, jwks: str, ca: str) -> tuple[str, Path | None]:
    """Where keys are, and who vouches for the place, as an access file in a folder names them."""
    return (jwks if "://" in jwks else str(folder / jwks)), (folder / ca if ca else None)


def parse_keys(data: bytes) -> tuple[Jwk, ...]:
    """The keys of a set that are for checking signatures. Raises ValueError."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    try:
        told: object = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    keys: object = cast("dict[str, object]", told).get("keys") if isinstance(told, dict) else None
    if not isinstance(keys, list):
        raise ValueError("no JSON object with a list of keys")
    # Shared keys ("oct") are no keys to check with: whoever has one can sign.
    found = tuple(key for key in map(_read, cast("list[object]", keys)[:MAX_KEYS]) if _is_public(key))
    if not found:
        raise ValueError("none of its keys is a public key for signatures")
    return found


def _read(key: object) -> Jwk:
    return cast("Jwk", key) if isinstance(key, dict) else {}


def _is_public(key: Jwk) -> bool:
    return key.get("kty") in ("RSA", "EC", "OKP") and key.get("use", "sig") == "sig"
