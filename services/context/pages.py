"""Pages: a token is good for the request that it was made for."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json

from fleet.context.v1 import context_pb2 as pb
from services.auth import tenant
from swe_ai_fleet.domain.errors import InvalidRequest

Paged = pb.GetGraphRelationshipsRequest | pb.ListStoriesRequest
"""Requests whose answers come in pages."""


def page_token(request: Paged, place: int | tuple[str, str]) -> str:
    """What the page that begins at a place, or behind a pair of names, is asked for with."""
    return base64.urlsafe_b64encode(json.dumps([_asked(request), place]).encode()).decode()


def page_start(request: pb.GetGraphRelationshipsRequest) -> int:
    """Where the page begins that a request asks for. Raises InvalidRequest for a token of another request, or none."""
    match _place(request):
        case None:
            return 0
        case int(start) if start >= 0:
            return start
        case _:
            raise InvalidRequest("the token belongs to another request", field="page_token")


def page_behind(request: pb.ListStoriesRequest) -> tuple[str, str] | None:
    """Behind which pair of names the page begins; None: it is the first one. Raises InvalidRequest as above."""
    match _place(request):
        case None:
            return None
        case [str(first), str(second)]:
            return first, second
        case _:
            raise InvalidRequest("the token belongs to another request", field="page_token")


def _asked(request: Paged) -> str:
    """What has to be the same from page to page."""
    if isinstance(request, pb.ListStoriesRequest):
        asked = ["stories", request.case_id, sorted(request.phases)]
    else:
        asked = [request.node, sorted(request.kinds), request.depth]
    return hashlib.sha256(json.dumps([tenant(), *asked]).encode()).hexdigest()[:16]


def _place(request: Paged) -> object:
    if not request.page_token:
        return None
    try:
        asked, place = json.loads(base64.urlsafe_b64decode(request.page_token[:400]))
    except (binascii.Error, ValueError, TypeError):
        raise InvalidRequest("not a token of this server", field="page_token") from None
    if asked != _asked(request) or place is None:
        raise InvalidRequest("the token belongs to another request", field="page_token")
    return place
