"""Pages of what is listed by when it was worked on last."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from services.auth import tenant
from swe_ai_fleet.domain.errors import InvalidRequest

T = TypeVar("T")

DEFAULT_PAGE_SIZE = 50


class Paged(Protocol):
    """A request for a page."""

    @property
    def page_size(self) -> int: ...

    @property
    def page_token(self) -> str: ...


def page_of(request: Paged, found: Sequence[T], place: Callable[[T], tuple[str, str]]) -> tuple[Sequence[T], str]:
    """The page that is asked for, and the token of the next one (empty: there is none).

    Args:
        request: Size and token.
        found: All there are, the one with the greatest place first.
        place: When one was worked on last, and its id. The one that a token names need not be there any more.

    Raises:
        InvalidRequest: The token is none.
    """
    start = _start([place(one) for one in found], request.page_token)
    end = start + (request.page_size or DEFAULT_PAGE_SIZE)
    shown = found[start:end]
    return shown, "/".join((_mark(), *place(shown[-1]))) if end < len(found) else ""


def _start(places: Sequence[tuple[str, str]], token: str) -> int:
    if not token:
        return 0
    mark, _, rest = token.partition("/")
    at, slash, name = rest.partition("/")
    if not slash or not name or mark != _mark():
        raise InvalidRequest("not a token of this server", field="page_token")
    return next((number for number, place in enumerate(places) if place < (at, name)), len(places))


def _mark() -> str:
    """What tokens of the calling tenant begin with: no other tenant's are taken."""
    return hashlib.sha256(tenant().encode()).hexdigest()[:12]
