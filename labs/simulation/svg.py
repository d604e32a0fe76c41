"""Small plots as SVG text: bars in groups, and lines. Everything is placed by numbers, nothing by a library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 44, 40
COLOURS = ("#2f6fab", "#d08a2e", "#4f9d69", "#a34a5b")
_STYLE = "font-family='sans-serif' font-size='12' fill='#333'"


def bars(
    title: str, groups: Sequence[str], series: Mapping[str, Sequence[float]], *, unit: str, least: float = 1.0
) -> str:
    """Groups of bars on a logarithmic scale; what is below `least` has no height."""
    most = max((value for values in series.values() for value in values), default=least)
    top = max(1, math.ceil(math.log10(max(most, least * 10) / least)))
    parts = [_axis(title, unit)]
    for power in range(top + 1):
        value = least * 10**power
        parts.append(_line_across(_height(power / top), f"{value:g}"))
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(groups))
    width = slot * 0.7 / max(1, len(series))
    for index, (name, values) in enumerate(series.items()):
        for place, value in enumerate(values):
            share = math.log10(max(value, least) / least) / top
            x, y = LEFT + slot * (place + 0.15) + width * index, _height(share)
            parts.append(
                f"<rect x='{x:.1f}' y='{y:.1f}' width='{width * 0.92:.1f}' height='{HEIGHT - BOTTOM - y:.1f}' "
                f"fill='{COLOURS[index % len(COLOURS)]}'><title>{escape(name)}: {value:.0f} {unit}</title></rect>"
            )
            parts.append(_text(x + width * 0.46, y - 3, f"{value:.0f}", size=10))
    for place, name in enumerate(groups):
        parts.append(_text(LEFT + slot * (place + 0.5), HEIGHT - BOTTOM + 16, name))
    return _document([*parts, *_legend(list(series))])


def lines(
    title: str, series: Mapping[str, Sequence[tuple[float, float]]], *, unit: str, across: str, most: float = 0.0
) -> str:
    """Lines through points (x, y), from zero on."""
    points = [point for values in series.values() for point in values]
    right = max((x for x, _ in points), default=1.0) or 1.0
    high = most or max((y for _, y in points), default=1.0) or 1.0
    parts = [_axis(title, unit)]
    for quarter in range(5):
        parts.append(_line_across(_height(quarter / 4), f"{high * quarter / 4:.4g}"))
        x = LEFT + (WIDTH - LEFT - RIGHT) * quarter / 4
        parts.append(_text(x, HEIGHT - BOTTOM + 16, f"{right * quarter / 4:.3g}"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, across))
    for index, values in enumerate(series.values()):
        path = " ".join(
            f"{LEFT + (WIDTH - LEFT - RIGHT) * x / right:.1f},{_height(min(1.0, y / high)):.1f}" for x, y in values
        )
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.5'/>")
    return _document([*parts, *_legend(list(series))])


def _height(share: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def _axis(title: str, unit: str) -> str:
    return (
        f"<text x='{LEFT}' y='18' font-family='sans-serif' font-size='14' font-weight='bold' fill='#333'>"
        f"{escape(title)}</text>" + _text(LEFT - 8, TOP - 10, unit, anchor="end")
    )


def _line_across(y: float, label: str) -> str:
    line = f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='#ddd'/>"
    return line + _text(LEFT - 8, y + 4, label, anchor="end")


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 12) -> str:
    style = _STYLE.replace("'12'", f"'{size}'")
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' {style}>{escape(text)}</text>"


def _legend(names: Sequence[str]) -> list[str]:
    parts: list[str] = []
    for index, name in enumerate(names):
        x = LEFT + 150 * index + 20
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f"<rect x='{x - 16}' y='26' width='10' height='10' fill='{colour}'/>")
        parts.append(_text(x, 35, name, anchor="start"))
    return parts


def _document(parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>\n"
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>\n{body}\n</svg>\n"
    )
