"""Takes out of vectors what all texts have in common.

Many models give any two texts a cosine of 0.5 or more, each model another one. Less the mean of texts that have
nothing to do with each other, unrelated texts come out near 0 for every model, and one threshold fits them all (Mu and
Viswanath 2018, "All-but-the-Top").
"""

from __future__ import annotations

import math
from collections.abc import Sequence

VERSION = 1
"""To be raised with every change of the texts: vectors of another centre cannot be compared."""
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


def centre_of(vectors: Sequence[Sequence[float]]) -> list[float]:
    """The mean of vectors."""
    return [math.fsum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def centred(vector: Sequence[float], centre: Sequence[float]) -> list[float]:
    """The vector less the centre, of length 1; what lies in the centre itself stays as it is."""
    moved = [a - b for a, b in zip(vector, centre, strict=True)]
    length = math.sqrt(math.fsum(one * one for one in moved))
    return [one / length for one in moved] if length > 1e-6 else list(vector)
