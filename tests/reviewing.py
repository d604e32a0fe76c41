"""What scripted reviewers answer, whatever number of candidates they are shown."""

from __future__ import annotations

import json

REVIEWER = "You review candidates of other agents"
"""What the opening of a review begins with."""
_LETTERS = "ABCDE"


def accepting(content: str) -> str:
    """A review that accepts every candidate and puts them in the order in which they are shown."""
    review = {"verdict": "accept", "score": 1.0, "content": content, "findings": []}
    reviews = [{"candidate": letter, **review} for letter in _LETTERS]
    return json.dumps({**review, "reviews": reviews, "reason": "They are alike.", "order": list(_LETTERS)})
