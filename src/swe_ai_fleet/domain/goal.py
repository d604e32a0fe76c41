"""What kind of goal somebody has."""

from __future__ import annotations

_KINDS: tuple[tuple[str, frozenset[str]], ...] = tuple(
    (kind, frozenset(words.split()))
    for kind, words in (
        ("fix", "fix fixes repair bug bugs broken error errors crash crashes fails failing failure wrong"),
        ("test", "test tests testing coverage"),
        ("document", "document documents documentation docs docstring docstrings readme describe"),
        ("refactor", "refactor refactoring rename restructure simplify clean cleanup split extract move"),
        ("investigate", "why how what where explain find investigate analyse analyze compare research"),
        ("build", "add implement create introduce support make write extend new"),
        ("change", "change update upgrade replace remove delete migrate improve configure"),
    )
)


def goal_type(goal: str) -> str:
    """What kind of goal it is, by the first word that says so: fix, test, document, refactor and the like; or other."""
    for word in goal[:2000].lower().split():
        bare = word.strip(".,:;!?()[]\"'`*")
        for kind, words in _KINDS:
            if bare in words:
                return kind
    return "other"
