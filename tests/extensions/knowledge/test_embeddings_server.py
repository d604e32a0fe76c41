"""Embeddings of a server, over real HTTP, and of the local model against what sentence-transformers makes of it."""

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from swe_ai_fleet.adapters.openai_model import OpenAIEmbedder
from swe_ai_fleet.domain.errors import ModelRejected
from swe_ai_fleet.ports import Embedder
from swe_ai_fleet.runtime.knowledge import required
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, Turn

KEY = "sk-very-secret"
SCRIPT = Script(conversations=(Conversation(turns=(Turn(content="Hello."),)),))


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(SCRIPT, model="words", api_key=KEY) as running:
        yield running


def client(server: ScriptedModelServer, **options: Any) -> OpenAIEmbedder:
    settings: dict[str, Any] = {"base_url": server.url, "model": "words", "api_key": KEY}
    return OpenAIEmbedder(**{**settings, "retry_wait_seconds": 0.001, **options})


@asynccontextmanager
async def warm(server: ScriptedModelServer, **options: Any) -> AsyncGenerator[OpenAIEmbedder]:
    """A client that has the texts of its own behind it."""
    async with client(server, **options) as embedder:
        await embedder.embed(["warm"])
        server.embeddings.requests = 0
        server.embeddings.inputs.clear()
        yield embedder


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def answer(*entries: dict[str, object]) -> Failure:
    """A well-formed answer of success, in place of the right one."""
    return Failure(status=200, body=json.dumps({"object": "list", "data": entries}))


async def test_many_texts_go_out_in_bounded_requests_and_come_back_in_order(server: ScriptedModelServer) -> None:
    texts = [f"text number {number}" for number in range(70)] + ["long " * 6_000] * 3
    async with warm(server) as embedder:
        vectors = await embedder.embed(texts)
        assert server.embeddings.requests > 2
        assert all(len(batch) <= 32 and sum(map(len, batch)) <= 64_000 for batch in server.embeddings.inputs)
        alone = [await embedder.embed([texts[number]]) for number in (0, 31, 32, 69)]
    for number, (expected,) in zip((0, 31, 32, 69), alone, strict=True):
        assert vectors[number] == pytest.approx(expected, abs=1e-9)
    assert len(vectors) == len(texts)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (answer({"index": 0, "embedding": [1, 0]}), "1 for 2 texts"),
        (answer({"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}), "an index of 0"),
        (answer({"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1]}), "1 dimensions between vectors of 256"),
        (Failure(status=200, body='{"data":[{"embedding":[1.0]},{"embedding":[1e999]}]}'), "finite"),
        (Failure(status=200, body='{"choices":[]}'), "`data` is missing"),
    ],
)
async def test_a_wrong_answer_is_refused_at_once(server: ScriptedModelServer, wrong: Failure, said: str) -> None:
    async with warm(server) as embedder:
        server.embeddings.fail_next(wrong)
        with pytest.raises(ModelRejected, match=said) as raised:
            await embedder.embed(["a", "b"])
    assert raised.value.field == "embeddings_model"
    assert server.embeddings.requests == 1


async def test_a_bad_key_is_named_and_not_shown(server: ScriptedModelServer) -> None:
    async with client(server, api_key="sk-wrong-one") as embedder:
        with pytest.raises(ModelRejected) as raised:
            await embedder.embed(["a"])
    assert (raised.value.field, server.embeddings.requests) == ("embeddings_api_key", 1)
    async with warm(server) as embedder:
        server.embeddings.fail_next(Failure(status=400, message=f"what is {KEY}?"))
        with pytest.raises(ModelRejected) as raised:
            await embedder.embed(["a"])
    assert KEY not in str(raised.value) and "***" in str(raised.value)


def chosen(**values: object) -> AbstractAsyncContextManager[Embedder | None]:
    """The embedder that settings name."""
    return required("embeddings", "").embedder(Settings(**values))  # type: ignore[arg-type]


async def test_which_embedder_there_is(server: ScriptedModelServer) -> None:
    async with chosen(embeddings_url=server.url, embeddings_api_key=KEY) as embedder:
        assert embedder is not None and embedder.name == "server:words:1"
    async with chosen() as embedder:
        assert embedder is not None and embedder.name == "local:all-MiniLM-L6-v2"
    async with chosen(embeddings="none", embeddings_url=server.url) as embedder:
        assert embedder is None


# The first components that sentence-transformers 6.2 gives with torch 2.14, model all-MiniLM-L6-v2.
REFERENCE = {
    "": (-0.118838, 0.048299, -0.002548, -0.011011, 0.051951, 0.010292, 0.115433, 0.000701),
    "东京的天气很好，我们去公园散步。": (  # noqa: RUF001
        *(0.071574, 0.092868, 0.095785, -0.053295),
        *(-0.025971, 0.040271, 0.109097, -0.025592),
    ),
    # Longer than the 256 word pieces that the model reads.
    "word " * 600: (-0.008124, -0.095586, -0.038673, 0.049662, -0.043794, 0.02372, -0.018142, -0.020207),
    "My favourite colour is blue.": (
        *(-0.049309, 0.004544, 0.042004, -0.039746),
        *(0.048049, 0.018493, 0.151307, -0.045136),
    ),
}


@pytest.fixture(scope="module")
async def embedder() -> AsyncIterator[Embedder]:
    """The local model."""
    async with chosen() as local:
        if local is None:
            pytest.skip("the extra `embeddings` is not installed")
        yield local


async def test_the_vectors_are_the_reference_ones(embedder: Embedder) -> None:
    vectors = await embedder.embed(list(REFERENCE))
    for vector, expected in zip(vectors, REFERENCE.values(), strict=True):
        assert len(vector) == 384
        assert vector[:8] == pytest.approx(expected, abs=2e-6)
        assert cosine(vector, vector) == pytest.approx(1.0, abs=1e-6)


async def test_half_a_surrogate_pair_and_a_huge_text_do_no_harm(embedder: Embedder) -> None:
    odd, huge, start = await embedder.embed(["half \ud83d", "word " * 200_000, "word " * 600])
    assert len(odd) == 384
    assert await embedder.embed([]) == []
    assert huge == pytest.approx(start, abs=1e-6)
