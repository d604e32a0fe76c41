"""Embeddings from an OpenAI-compatible server, centred on the mean of unrelated texts.

Many models give any two texts a cosine of 0.5 or more, a different one for each model. After subtracting the mean
vector of unrelated texts, unrelated texts have a cosine near 0 for every model, so that one threshold fits them all (Mu
and Viswanath 2018, "All-but-the-Top").
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Self, TypeVar

from swe_ai_fleet.adapters.openai_model.answers import ErrorAnswer
from swe_ai_fleet.adapters.openai_model.connection import ServerConnection
from swe_ai_fleet.adapters.openai_model.faults import ServerRefusal, retry_after_seconds
from swe_ai_fleet.adapters.openai_model.probing import read_models
from swe_ai_fleet.adapters.openai_model.streaming import read_json
from swe_ai_fleet.adapters.openai_model.wire import dump_json
from swe_ai_fleet.domain.errors import ContextTooLong, ModelError, ModelRejected, ModelUnavailable
from swe_ai_fleet.domain.json_values import is_list, items, mapping

VERSION = 1
"""Raise it with every change of the texts: vectors with different centres cannot be compared."""
TEXTS = (
    "Salt the water before the pasta goes in.",
    "The function returns an empty list when the file is missing.",
    "Her flight to Lisbon was delayed by two hours.",
    "def parse(line): return line.split(',')",
    "The bridge was closed in the winter of 1963.",
    "My favourite colour is green.",
    "Interest rates rose by a quarter of a percent.",
    "Restart the service after changing the configuration.",
    "A blackbird sang on the roof before dawn.",
    "How many players are on a volleyball team?",
    "The patient should take the tablets after meals.",
    "Commit 4f2a broke the build on Windows.",
    "Rent is due on the first day of the month.",
    "The museum shows paintings of the seventeenth century.",
    "SELECT name FROM customers WHERE country = 'PT'",
    "Please close the door quietly.",
    "Granite is harder than limestone.",
    "The team prefers small pull requests.",
    "She plays the cello in an orchestra.",
    "What is the capital of Australia?",
    "TypeError: 'NoneType' object is not subscriptable",
    "Plant the bulbs ten centimetres deep in autumn.",
    "The train to the airport leaves every twenty minutes.",
    "Use port 8080 for the local server.",
    "The court dismissed the appeal.",
    "Wool keeps warm even when it is wet.",
    "The meeting moved to Thursday at ten.",
    "Integration tests need a running database.",
    "He lost his keys somewhere in the garden.",
    "The battery lasts about nine hours.",
    "Volcanic ash makes the soil fertile.",
    "Thank you for your letter of 3 May.",
)


def centred(vector: Sequence[float], centre: Sequence[float]) -> list[float]:
    """The vector minus the centre, scaled to length 1; a vector equal to the centre is unchanged."""
    difference = [a - b for a, b in zip(vector, centre, strict=True)]
    length = math.sqrt(math.fsum(component * component for component in difference))
    return [component / length for component in difference] if length > 1e-6 else list(vector)


_PATH = "/embeddings"
_ATTEMPTS, _LONGEST_WAIT_SECONDS, _TIMEOUT_SECONDS = 3, 10.0, 60.0
_T = TypeVar("_T")
# The default limit of the strictest of the common servers (text-embeddings-inference).
_MOST_TEXTS = 32
_MOST_CHARACTERS = 64_000
_LONGEST_TEXT = 16_384
_SHORTEST_CUT = 64
_MOST_DIMENSIONS = 16_384
_FIELDS = {"model_url": "embeddings_url", "model": "embeddings_model", "model_api_key": "embeddings_api_key"}


class OpenAIEmbedder:
    """An `Embedder` behind any server with `/v1/embeddings`.

    Use it as an async context manager, within one event loop. Without a model's name, entering it asks the server for
    its models, and raises ModelUnavailable or ModelRejected without an answer.
    A text that is too long for the model is cut until it fits. Vectors are centred, see `centred`: the first request
    is for our own `TEXTS`.

    Args:
        base_url: the API's URL; a bare `http://host:port` gets `/v1`.
        model: its name on the server; empty takes the first that the server lists.
        api_key: sent as a bearer token; empty for servers that require none.
        retry_wait_seconds: before the second of three attempts, doubled before the third, each with up to

    Raises ModelRejected for a base URL that is none.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str = "",
        api_key: str = "",
        retry_wait_seconds: float = 0.5,
    ) -> None:
        with _embedding_settings():
            self._connection = ServerConnection(
                base_url=base_url,
                model=model,
                api_key=api_key,
                timeout_seconds=_TIMEOUT_SECONDS,
            )
        self._retry_wait_seconds = retry_wait_seconds
        self._model = model
        self._longest = _LONGEST_TEXT
        self._dimensions = 0
        self._centre: Sequence[float] = ()

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        try:
            if not self._model:
                with _embedding_settings():
                    self._model = await self._retry(self._first_model)
        except BaseException:
            await self._connection.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.__aexit__()

    @property
    def name(self) -> str:
        """The name of the vector space: the same for the same model behind another server."""
        return f"server:{self._model}:{VERSION}"

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        vectors: list[Sequence[float]] = []
        with _embedding_settings():
            if texts and not self._centre:
                reference = await self._fitted(TEXTS)
                self._centre = [math.fsum(column) / len(TEXTS) for column in zip(*reference, strict=True)]
            for batch in _batches([text[:_LONGEST_TEXT] for text in texts]):
                vectors += [centred(vector, self._centre) for vector in await self._fitted(batch)]
        return vectors

    async def _fitted(self, texts: Sequence[str]) -> list[Sequence[float]]:
        """As `_request`, split into batches and with texts cut until the server accepts them."""
        cut = [text[: self._longest] for text in texts]
        try:
            return await self._request(cut)
        except ContextTooLong as error:
            if len(texts) > 1:
                half = len(texts) // 2
                return await self._fitted(texts[:half]) + await self._fitted(texts[half:])
            if len(cut[0]) <= _SHORTEST_CUT:
                raise ModelRejected(error.message, field="model_url") from error
        # Remembered, so that the next long text is not refused first.
        self._longest = max(_SHORTEST_CUT, len(cut[0]) // 2)
        return await self._fitted(texts)

    async def _request(self, texts: Sequence[str]) -> list[Sequence[float]]:
        body = dump_json({"model": self._model, "input": texts, "encoding_format": "float"})

        async def attempt() -> list[Sequence[float]]:
            answer = await self._connection.complete(body, path=_PATH)
            try:
                read = read_json(answer, [])
            except ValueError as error:
                raise self._connection.unreadable(answer) from error
            return self._read(read, len(texts))

        return await self._retry(attempt)

    def _read(self, answer: object, count: int) -> list[Sequence[float]]:
        try:
            vectors = read_vectors(answer, count)
            if wrong := [len(vector) for vector in vectors if len(vector) != (self._dimensions or len(vectors[0]))]:
                raise ValueError(
                    f"a vector of {wrong[0]} dimensions between vectors of {self._dimensions or 'another'}"
                )
        except ErrorAnswer as error:
            raise self._connection.refused(error.refusal) from error
        except ValueError as error:
            # A retry would get the same answer.
            message = f"{self._connection.server} gave embeddings that cannot be used: {error}"
            raise ModelRejected(message, field="model", hint="is it a model for embeddings?") from error
        self._dimensions = len(vectors[0])
        return vectors

    async def _retry(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """The result of `attempt`, retried with growing waits while it raises ModelUnavailable."""
        attempts = 0
        while True:
            try:
                return await attempt()
            except ModelUnavailable as error:
                attempts += 1
                retry_after = retry_after_seconds(error.__cause__)
                if attempts >= _ATTEMPTS or (retry_after or 0.0) > _LONGEST_WAIT_SECONDS:
                    raise
            # Jitter, since other agents got the same answer.
            jitter = random.uniform(0, self._retry_wait_seconds)  # noqa: S311
            own = min(_LONGEST_WAIT_SECONDS, self._retry_wait_seconds * 2 ** (attempts - 1) + jitter)
            await asyncio.sleep(own if retry_after is None else retry_after + jitter)

    async def _first_model(self) -> str:
        answer = await self._connection.models()
        try:
            return read_models(answer)[0].id
        except (ValueError, IndexError) as error:
            raise ModelRejected(
                f"{self._connection.server} lists no model", field="model", hint="set the model"
            ) from error


def read_vectors(answer: object, count: int) -> list[Sequence[float]]:
    """The vectors in an answer in the order of their texts, each scaled to length 1.

    Raises ValueError unless there is one for each text, all of the same length, of finite numbers and not zero;
    ErrorAnswer for an error in their place.
    """
    fields = mapping(answer)
    listed = fields.get("data")
    if not is_list(listed):
        if error := fields.get("error"):
            raise ErrorAnswer(ServerRefusal.inside(error))
        raise ValueError("a list `data` is missing")
    entries = [mapping(entry) for entry in listed]
    if len(entries) != count:
        raise ValueError(f"{len(entries)} for {count} texts")
    by_index: dict[int, Sequence[float]] = {}
    for position, entry in enumerate(entries):
        index = entry.get("index", position)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count or index in by_index:
            raise ValueError(f"an index of {str(index)[:32]} among {count} texts")
        by_index[index] = _unit(entry.get("embedding"))
    vectors = [by_index[index] for index in range(count)]
    if len({len(vector) for vector in vectors}) > 1:
        raise ValueError("vectors of different dimensions")
    return vectors


def _unit(embedding: object) -> Sequence[float]:
    listed = items(embedding)
    if not 0 < len(listed) <= _MOST_DIMENSIONS:
        raise ValueError("an embedding that is not a list of numbers")
    numbers: list[float] = []
    for number in listed:
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < math.inf:
            raise ValueError("an embedding with something else than finite numbers")
        numbers.append(float(number))
    largest = max(map(abs, numbers))
    if largest == 0:
        raise ValueError("an embedding of zeros")
    # Divided by the largest first, since squares of very small or large numbers overflow.
    numbers = [number / largest for number in numbers]
    length = math.sqrt(math.fsum(number * number for number in numbers))
    return [number / length for number in numbers]


def _batches(texts: Sequence[str]) -> Generator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        if batch and (len(batch) == _MOST_TEXTS or characters + len(text) > _MOST_CHARACTERS):
            yield batch
            batch, characters = [], 0
        # Servers refuse an empty text.
        batch.append(text or " ")
        characters += len(text)
    if batch:
        yield batch


@contextmanager
def _embedding_settings() -> Generator[None]:
    """A context that renames the settings in the connection's faults to those of embeddings."""
    try:
        yield
    except ModelError as error:
        kind = ModelRejected if isinstance(error, ContextTooLong) else type(error)
        raise kind(error.message, field=_FIELDS.get(error.field, error.field), hint=error.hint) from error
