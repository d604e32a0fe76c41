"""Pages of lists: a page token holds the key after which the next page begins, for the same request of a tenant."""

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


def page_token(query: Sequence[object], key: Sequence[str | int]) -> str:
    """The token of the page after a key. `query`: the JSON values that must be equal on all pages."""
    return base64.urlsafe_b64encode(json.dumps([_digest(query), *key]).encode()).decode()


def key_of(token: str, query: Sequence[object], *kinds: type[T]) -> tuple[T, ...]:
    """The key in a token, whose parts have these types; () without a token.

    Raises InvalidRequest for the token of another request, and for an invalid one.
    """
    if not token:
        return ()
    try:
        members = items(parse_json(base64.urlsafe_b64decode(token[:_MAX_TOKEN_CHARS])))
    except (binascii.Error, ValueError):
        members = []
    key = [part for part, kind in zip(members[1:], kinds, strict=False) if isinstance(part, kind)]
    if not members or len(key) != len(kinds) or len(members) != len(kinds) + 1:
        raise InvalidRequest("not a token of this server", field="page_token")
    if members[0] != _digest(query):
        raise InvalidRequest("the token belongs to another request", field="page_token")
    return tuple(key)


def page_of(request: Paged, entries: Sequence[T], key: Callable[[T], tuple[str, str]]) -> tuple[Sequence[T], str]:
    """The requested page, and the token of the next one (empty: there is none).

    Args:
        request: Size and token.
        entries: All entries, in descending order of their keys.
        key: The time of the last work on an entry, and its id. A token's entry need not exist any more.

    Raises:
        InvalidRequest: The token is invalid.
    """
    query = (type(request).__name__,)
    last = key_of(request.page_token, query, str, str)
    remaining = [entry for entry in entries if not last or key(entry) < last]
    page = remaining[: request.page_size or DEFAULT_PAGE_SIZE]
    return page, page_token(query, key(page[-1])) if len(page) < len(remaining) else ""


def _digest(query: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps([tenant(), *query]).encode()).hexdigest()[:16]
