"""Where the nodes of a workflow stand in a picture: layer by layer, by their longest way from the top."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swe_ai_fleet.domain.workflow import Workflow
from swe_ai_fleet.workflows.graph import ordered

BOX_HEIGHT = 46
_CHAR_WIDTH = 7.5
_PADDING = 24
_LEAST_WIDTH = 110
_GAP_X = 28
GAP_Y = 54
_MARGIN = 20
_SWEEPS = 4
_BEND_WIDTH = 14
_MAX_BENDS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node's place; `x` and `y` are of its upper left corner."""

    x: float
    y: float
    width: float
    height: float = BOX_HEIGHT

    @property
    def centre(self) -> float:
        return self.x + self.width / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All nodes' places and the size of the whole. `bends` are the places that edges over several layers go through."""

    boxes: Mapping[str, Box]
    bends: Mapping[tuple[str, str], tuple[Box, ...]]
    width: float
    height: float


def laid_out(workflow: Workflow, labels: Mapping[str, int]) -> Layout:
    """Layers by longest path; within one, nodes in the order of the mean place of those before them.

    Sugiyama's method: an edge over several layers has a place of its own in each, so that it passes beside the boxes.
    Where there are very many such edges, the last of them are drawn straight.

    Args:
        workflow: A checked one: its edges make no circle.
        labels: How many characters stand in each node's box.
    """
    ids = [node.id for node in workflow.nodes]
    pairs = [(edge.source, edge.target) for edge in workflow.edges]
    before: dict[str, list[str]] = {name: [] for name in ids}
    for source, target in pairs:
        before[target].append(source)
    depth: dict[str, int] = {}
    for name in ordered(ids, pairs):
        depth[name] = max((depth[source] + 1 for source in before[name]), default=0)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in ids:
        layers[depth[name]].append(name)
    ways = _bent(dict.fromkeys(pairs), layers, before, depth)
    _untangle(layers, before)
    widths = {name: max(_LEAST_WIDTH, labels[name] * _CHAR_WIDTH + _PADDING) for name in ids}
    boxes, width, height = _placed(layers, widths)
    bends = {pair: tuple(boxes[name] for name in way) for pair, way in ways.items()}
    return Layout(boxes={name: boxes[name] for name in ids}, bends=bends, width=width, height=height)


def _bent(
    pairs: Iterable[tuple[str, str]],
    layers: Sequence[list[str]],
    before: dict[str, list[str]],
    depth: Mapping[str, int],
) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """Give the edges over several layers a place in each between; their names, which no node can have."""
    ways: dict[tuple[str, str], tuple[str, ...]] = {}
    bends = 0
    for source, target in pairs:
        between = range(depth[source] + 1, depth[target])
        bends += len(between)
        if not between or bends > _MAX_BENDS:
            continue
        way = tuple(f"{source} {target} {layer}" for layer in between)
        for previous, name, layer in zip((source, *way), way, between, strict=False):
            before[name] = [previous]
            layers[layer].append(name)
        before[target] = [way[-1] if name == source else name for name in before[target]]
        ways[source, target] = way
    return ways


def _untangle(layers: list[list[str]], before: Mapping[str, list[str]]) -> None:
    for _ in range(_SWEEPS):
        place = {name: at / max(1, len(layer) - 1) for layer in layers for at, name in enumerate(layer)}
        for layer in layers[1:]:
            mean = {name: sum(place[one] for one in before[name]) / len(before[name]) for name in layer}
            # Sorting is stable: where two are equal, the order of the file stays.
            layer.sort(key=lambda name, mean=mean: mean[name])
            place.update({name: at / max(1, len(layer) - 1) for at, name in enumerate(layer)})


def _placed(layers: list[list[str]], widths: Mapping[str, float]) -> tuple[Mapping[str, Box], float, float]:
    rows = [sum(widths.get(name, _BEND_WIDTH) for name in layer) + _GAP_X * (len(layer) - 1) for layer in layers]
    whole = max(rows, default=0)
    boxes: dict[str, Box] = {}
    for number, layer in enumerate(layers):
        x = _MARGIN + (whole - rows[number]) / 2
        for name in layer:
            boxes[name] = Box(x=x, y=_MARGIN + number * (BOX_HEIGHT + GAP_Y), width=widths.get(name, _BEND_WIDTH))
            x += boxes[name].width + _GAP_X
    height = 2 * _MARGIN + len(layers) * (BOX_HEIGHT + GAP_Y) - GAP_Y
    return boxes, whole + 2 * _MARGIN, height
