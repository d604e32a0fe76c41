"""Pages of lists: a token names the place behind which the next page begins, for the same request of a tenant."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from services.auth import tenant
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import items, parse_json

T = TypeVar("T")
DEFAULT_PAGE_SIZE = 50
_MAX_TOKEN_CHARS = 1_000


class Paged(Protocol):
    @property
    def page_size(self) -> int: ...
    @property
    def page_token(self) -> str: ...


def page_token(asked: Sequence[object], place: Sequence[str | int]) -> str:
    """The token of the page behind a place. `asked`: the JSON values that must be equal on all pages."""
    return base64.urlsafe_b64encode(json.dumps([_digest(asked), *place]).encode()).decode()


def place_behind(token: str, asked: Sequence[object], *kinds: type[T]) -> tuple[T, ...]:
    """The place that a token names, of members of these kinds; none without a token.

    Raises InvalidRequest for the token of another request, and for an invalid one.
    """
    if not token:
        return ()
    try:
        members = items(parse_json(base64.urlsafe_b64decode(token[:_MAX_TOKEN_CHARS])))
    except (binascii.Error, ValueError):
        members = []
    place = [part for part, kind in zip(members[1:], kinds, strict=False) if isinstance(part, kind)]
    if not members or len(place) != len(kinds) or len(members) != len(kinds) + 1:
        raise InvalidRequest("not a token of this server", field="page_token")
    if members[0] != _digest(asked):
        raise InvalidRequest("the token belongs to another request", field="page_token")
    return tuple(place)


def page_of(request: Paged, entries: Sequence[T], place: Callable[[T], tuple[str, str]]) -> tuple[Sequence[T], str]:
    """The requested page, and the token of the next one (empty: there is none).

    Args:
        request: Size and token.
        entries: All there are, the one with the greatest place first.
        place: When an entry was worked on last, and its id. The entry of a token need not exist any more.

    Raises:
        InvalidRequest: The token is none.
    """
    asked = (type(request).__name__,)
    last = place_behind(request.page_token, asked, str, str)
    remaining = [entry for entry in entries if not last or place(entry) < last]
    page = remaining[: request.page_size or DEFAULT_PAGE_SIZE]
    return page, page_token(asked, place(page[-1])) if len(page) < len(remaining) else ""


def _digest(asked: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps([tenant(), *asked]).encode()).hexdigest()[:16]
