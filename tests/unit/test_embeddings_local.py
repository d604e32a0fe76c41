"""The local model, run by numpy, against what sentence-transformers makes of the same weights."""

import math
from collections.abc import AsyncIterator, Sequence

import pytest

from swe_ai_fleet.adapters.embeddings import LocalEmbedder, is_installed

pytestmark = pytest.mark.skipif(not is_installed(), reason="the extra `embeddings` is not installed")

# The first components that sentence-transformers 6.2 gives with torch 2.14, model all-MiniLM-L6-v2.
REFERENCE = {
    "": (-0.118838, 0.048299, -0.002548, -0.011011, 0.051951, 0.010292, 0.115433, 0.000701),
    "The quick brown fox jumps over the lazy dog.": (
        *(0.043934, 0.058934, 0.048178, 0.077548),
        *(0.026744, -0.03763, -0.002605, -0.059943),
    ),
    "东京的天气很好，我们去公园散步。": (  # noqa: RUF001
        *(0.071574, 0.092868, 0.095785, -0.053295),
        *(-0.025971, 0.040271, 0.109097, -0.025592),
    ),
    "def f(x):\n    return x**2 + 1\n": (
        *(-0.052444, 0.059685, -0.006357, 0.046779),
        *(-0.050093, -0.062627, 0.048532, 0.019846),
    ),
    # Longer than the 256 word pieces that the model reads.
    "word " * 600: (-0.008124, -0.095586, -0.038673, 0.049662, -0.043794, 0.02372, -0.018142, -0.020207),
    "My favourite colour is blue.": (
        *(-0.049309, 0.004544, 0.042004, -0.039746),
        *(0.048049, 0.018493, 0.151307, -0.045136),
    ),
}


@pytest.fixture(scope="module")
async def embedder() -> AsyncIterator[LocalEmbedder]:
    async with LocalEmbedder() as local:
        yield local


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


async def test_the_vectors_are_the_reference_ones(embedder: LocalEmbedder) -> None:
    vectors = await embedder.embed(list(REFERENCE))
    for vector, expected in zip(vectors, REFERENCE.values(), strict=True):
        assert len(vector) == 384
        assert vector[:8] == pytest.approx(expected, abs=2e-6)
        assert cosine(vector, vector) == pytest.approx(1.0, abs=1e-6)


async def test_a_text_has_the_same_vector_in_every_company(embedder: LocalEmbedder) -> None:
    texts = [f"{'very ' * (number % 7)}short text {number}" for number in range(14)]
    together, alone = await embedder.embed(texts), [(await embedder.embed([text]))[0] for text in texts[:5]]
    assert len(together) == len(texts)
    for one, other in zip(alone, together, strict=False):
        assert one == pytest.approx(other, abs=1e-6)


async def test_half_a_surrogate_pair_and_a_huge_text_do_no_harm(embedder: LocalEmbedder) -> None:
    odd, huge, start = await embedder.embed(["half \ud83d", "word " * 1_000_000, "word " * 600])
    assert len(odd) == 384
    assert await embedder.embed([]) == []
    assert huge == pytest.approx(start, abs=1e-6)
