"""The routes of the table."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from services.gateway.rest.answering import answer
from services.gateway.rest.openapi import document_bytes
from services.gateway.rest.operation import Operation
from services.gateway.rest.table import OPERATIONS
from services.gateway.upstream import Upstream

DOCUMENT_PATH = "/api/openapi.json"


def rest_routes(upstream: Upstream) -> list[BaseRoute]:
    """A route for each path of the table, and one for the document about them.

    Args:
        upstream: Where the services are.
    """
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.verb] = operation
    return [_document_route(), *(_route(path, verbs, upstream) for path, verbs in by_path.items())]


def _document_route() -> Route:
    cached: list[bytes] = []

    async def endpoint(_: Request) -> Response:
        if not cached:
            cached.append(await asyncio.to_thread(document_bytes))
        return Response(cached[0], media_type="application/json")

    return Route(DOCUMENT_PATH, endpoint, methods=["GET"])


def _route(path: str, verbs: Mapping[str, Operation], upstream: Upstream) -> Route:
    # One route for all verbs, so that the 405 for another one names them all.
    async def endpoint(request: Request) -> Response:
        verb = "GET" if request.method == "HEAD" else request.method
        return await answer(request, verbs[verb], upstream)

    return Route(path, endpoint, methods=list(verbs), name=path)
