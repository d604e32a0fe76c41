"""The order of a workflow's nodes: topological order, cycles, predecessors."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence


def ordered(ids: Sequence[str], edges: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The ids with sources before targets, otherwise as given; those in a cycle, or after one, are left out.

    Kahn's algorithm.
    """
    after, left = _following(edges), dict.fromkeys(ids, 0)
    for targets in after.values():
        for target in targets:
            left[target] += 1
    ready = deque(name for name in ids if not left[name])
    order: list[str] = []
    while ready:
        name = ready.popleft()
        order.append(name)
        for target in after[name]:
            left[target] -= 1
            if not left[target]:
                ready.append(target)
    return tuple(order)


def cycle(ids: Sequence[str], edges: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """One cycle, with its first id repeated at the end; empty without cycles."""
    stuck = set(ids) - set(ordered(ids, edges))
    if not stuck:
        return ()
    # Each of these has a source among them, so the way back over sources must meet itself.
    before = {target: source for source, target in edges if source in stuck and target in stuck}
    name = next(each for each in ids if each in stuck)
    seen: dict[str, None] = {}
    while name not in seen:
        seen[name] = None
        name = before[name]
    path = [*seen]
    circle = path[path.index(name) :]
    first = circle.index(min(circle, key=ids.index))
    forward = [circle[(first - step) % len(circle)] for step in range(len(circle))]
    return (*forward, forward[0])


def upstream(ids: Sequence[str], edges: Sequence[tuple[str, str]]) -> Mapping[str, frozenset[str]]:
    """For each id all its direct and indirect sources, in a graph without cycles."""
    sources: dict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        sources[target].append(source)
    before: dict[str, frozenset[str]] = {}
    for name in ordered(ids, edges):
        before[name] = frozenset().union(sources[name], *(before[source] for source in sources[name]))
    return before


def _following(edges: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    after: dict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        after[source].append(target)
    return after
