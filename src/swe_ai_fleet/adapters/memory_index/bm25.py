"""BM25 over texts in memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

_K1 = 1.2
_B = 0.75


def bm25(query: Sequence[str], documents: Sequence[Sequence[str]], *, total: int = 0) -> list[float]:
    """How well each document fits the query, 0 where it shares no term with it.

    Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the weight of a term
    that Lucene uses, which is never negative.

    Args:
        query: Distinct terms.
        documents: The terms of each document; all that have a term of the query.
        total: How many documents there are, where more than these.
    """
    total = max(total, len(documents))
    counts = [Counter(document) for document in documents]
    average = sum(len(document) for document in documents) / len(documents) if documents else 0.0
    scores = [0.0] * len(documents)
    for term in query:
        having = sum(1 for count in counts if term in count)
        weight = math.log(1 + (total - having + 0.5) / (having + 0.5))
        for number, count in enumerate(counts):
            if frequency := count[term]:
                length = _K1 * (1 - _B + _B * len(documents[number]) / average)
                scores[number] += weight * frequency * (_K1 + 1) / (frequency + length)
    return scores
