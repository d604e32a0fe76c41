"""What tests of memory share: an embedder that knows a few synonyms, and stores to try."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from swe_ai_fleet.domain.errors import ModelRejected, ModelUnavailable

_DIMENSIONS = 512
_SYNONYMS = {"color": "colour", "hue": "colour", "favorite": "favourite", "automobile": "car", "beloved": "favourite"}


class WordEmbedder:
    """An `Embedder` whose texts mean the same that share words, or synonyms of them.

    Attributes:
        away: Whether it fails as a server does that is down.
        refuses: Texts that hold this are refused.
        embedded: How many texts it was given.
    """

    name = "words"

    def __init__(self) -> None:
        self.away = False
        self.refuses = ""
        self.embedded = 0

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        if self.away:
            raise ModelUnavailable("the embedder is away")
        if self.refuses and any(self.refuses in text for text in texts):
            raise ModelRejected("too long")
        self.embedded += len(texts)
        return [_vector(text) for text in texts]


def _vector(text: str) -> list[float]:
    vector = [0.0] * _DIMENSIONS
    for word in set(re.findall(r"\w+", text.lower())) - {"the", "a", "and", "is", "of", "her", "what"}:
        term = word.removesuffix("s")
        place = int.from_bytes(hashlib.sha256(_SYNONYMS.get(term, term).encode()).digest()[:4])
        vector[place % _DIMENSIONS] += 1.0
    length = sum(value * value for value in vector) ** 0.5
    return [value / length for value in vector] if length else [1.0, *vector[1:]]
