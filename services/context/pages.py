"""Pages of relations: a token is good for the request that it was made for."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json

from fleet.context.v1 import context_pb2 as pb
from swe_ai_fleet.domain.errors import InvalidRequest


def _asked(request: pb.GetGraphRelationshipsRequest) -> str:
    """What has to be the same from page to page."""
    asked = [request.node, sorted(request.kinds), request.depth]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def page_token(request: pb.GetGraphRelationshipsRequest, place: int) -> str:
    """What the page that begins at a place is asked for with."""
    return base64.urlsafe_b64encode(json.dumps([_asked(request), place]).encode()).decode()


def page_start(request: pb.GetGraphRelationshipsRequest) -> int:
    """Where the page begins that a request asks for. Raises InvalidRequest for a token of another request, or none."""
    if not request.page_token:
        return 0
    try:
        asked, start = json.loads(base64.urlsafe_b64decode(request.page_token[:400]))
    except (binascii.Error, ValueError, TypeError):
        raise InvalidRequest("not a token of this server", field="page_token") from None
    if asked != _asked(request) or not isinstance(start, int) or start < 0:
        raise InvalidRequest("the token belongs to another request", field="page_token")
    return start
