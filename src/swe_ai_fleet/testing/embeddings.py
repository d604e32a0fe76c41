"""`/v1/embeddings` of the scripted server: vectors made of the words of a text, the same on every machine."""

from __future__ import annotations

import hashlib
import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web
from pydantic_core import from_json

from swe_ai_fleet.testing.completion import CHARACTERS_PER_TOKEN
from swe_ai_fleet.testing.refusals import fail, refusal, too_long, unauthorized
from swe_ai_fleet.testing.script import Failure

DIMENSIONS = 256

_WORD = re.compile(r"\w+")
_COMMON = frozenset(
    re.findall(r"[a-z]+", "a an and are at be by do does for from how i in is it my of on or that the this to was what")
)


def word_vector(text: str, *, dimensions: int = DIMENSIONS) -> list[float]:
    """A vector of length 1; the cosine of two is the larger the more words the texts share, 0 where none (mostly).

    Each word is hashed to one dimension (Weinberger et al. 2009, "Feature hashing"), without a sign, so that words
    that meet there never cancel each other out.
    """
    counts = [0.0] * dimensions
    for word in _WORD.findall(text.casefold()) or [""]:
        digest = hashlib.blake2b(word.encode(errors="replace"), digest_size=8).digest()
        counts[int.from_bytes(digest) % dimensions] += 0.1 if word in _COMMON else 1.0
    length = math.sqrt(sum(count * count for count in counts))
    return [count / length for count in counts]


class EmbeddingsRoute:
    """The route of one server.

    `most_texts` are taken in one request and `longest` tokens (4 characters each) in one text, as servers limit them.
    """

    def __init__(
        self, knows: Callable[[web.Request], bool], *, most_texts: int = 2048, longest: int = 8192, keep: int = 32
    ) -> None:
        self._knows = knows
        self._failures: deque[Failure] = deque()
        self.most_texts = most_texts
        self.longest = longest
        self.requests = 0
        """How many requests came in."""
        self.inputs: deque[Sequence[str]] = deque(maxlen=keep)
        """The texts of the last of them."""

    def fail_next(self, *failures: Failure) -> None:
        """Let the next requests fail, `times` for each failure."""
        self._failures.extend(failure for failure in failures for _ in range(failure.times))

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request."""
        self.requests += 1
        body = await request.read()
        if not self._knows(request):
            return unauthorized()
        if self._failures:
            return fail(request, self._failures.popleft())
        try:
            payload: dict[str, Any] = from_json(body)
            asked = payload["input"]
            texts: list[str] = [asked] if isinstance(asked, str) else asked
            vectors = [word_vector(text) for text in texts]
        except (ValueError, TypeError, KeyError):
            return refusal(400, "the body is not a request for embeddings")
        self.inputs.append(texts)
        if not 0 < len(texts) <= self.most_texts or not all(texts):
            return refusal(413 if len(texts) > self.most_texts else 400, f"batch size 1 to {self.most_texts}")
        tokens = [len(text) // CHARACTERS_PER_TOKEN for text in texts]
        if max(tokens) > self.longest:
            return too_long(self.longest, max(tokens))
        data = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)]
        usage = {"prompt_tokens": sum(tokens), "total_tokens": sum(tokens)}
        answered = {"object": "list", "data": data, "model": payload.get("model"), "usage": usage}
        return web.json_response(answered)
