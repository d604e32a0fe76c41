"""Which embedder there is."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal, cast, get_args

import structlog

from swe_ai_fleet.domain.errors import InvalidRequest, ModelError
from swe_ai_fleet.ports import Embedder
from swe_ai_fleet.settings import Settings

_log = structlog.get_logger(__name__)

EmbedderKind = Literal["auto", "server", "local", "none"]


@asynccontextmanager
async def open_embedder(
    kind: str = "auto", *, url: str = "", model: str = "", api_key: str = ""
) -> AsyncGenerator[Embedder | None]:
    """The embedder that is asked for; None where memories are to be found by their words only.

    Args:
        kind: `server`, `local`, `none`, or `auto`: the server where a URL is given, else the local model where its
            package is installed, else none.
        url: of an OpenAI-compatible API.
        model: its model; empty takes the first that the server lists, which must answer then.
        api_key: its bearer key.

    Raises InvalidRequest for another kind or a server without a URL, PreconditionFailed where the local model is not
    installed, ModelUnavailable and ModelRejected where no model is named and the server does not say which it has.
    """
    if kind not in get_args(EmbedderKind):
        raise InvalidRequest(
            f"{kind[:64]!r} is not a kind of embeddings",
            field="embeddings",
            hint=f"one of {', '.join(get_args(EmbedderKind))}",
        )
    chosen = cast("EmbedderKind", kind)
    if chosen == "server" and not url:
        raise InvalidRequest("embeddings from a server need embeddings_url", field="embeddings_url")
    if chosen == "server" or (chosen == "auto" and url):
        from swe_ai_fleet.adapters.openai_model import OpenAIEmbedder

        async with OpenAIEmbedder(base_url=url, model=model, api_key=api_key) as server:
            yield server
    elif chosen == "local" or chosen == "auto":
        from swe_ai_fleet.adapters.embeddings import LocalEmbedder, is_installed

        if chosen == "auto" and not is_installed():
            yield None
        else:
            async with LocalEmbedder() as local:
                yield local
    else:
        yield None


@asynccontextmanager
async def configured_embedder(settings: Settings) -> AsyncGenerator[Embedder | None]:
    """The embedder of the settings; None without one, and where its server does not answer at the start.

    Raises as `open_embedder` does, ModelError aside: memories are found by their words then.
    """
    async with AsyncExitStack() as stack:
        embedder: Embedder | None = None
        try:
            embedder = await stack.enter_async_context(
                open_embedder(
                    settings.embeddings,
                    url=settings.embeddings_url,
                    model=settings.embeddings_model,
                    api_key=settings.embeddings_api_key,
                )
            )
        except ModelError as error:
            _log.warning("memory.embedder_away", reason=error.message)
        yield embedder
