"""What the soak calls flat: growth is found through noise and outliers, and what only wobbles is left alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.soak.client import percentiles
from labs.soak.flatness import BOUNDS, Bound, Judged, judge, slope


@settings(max_examples=50)
@given(st.floats(-50, 50), st.floats(-1e3, 1e3), st.integers(8, 40), st.data())
def test_the_slope_of_a_line_is_found_under_outliers(
    rise: float, start: float, count: int, data: st.DataObject
) -> None:
    points = [(float(at), start + rise * at) for at in range(count)]
    for _ in range(count // 8):
        where = data.draw(st.integers(0, count - 1))
        points[where] = (float(where), 1e6)
    assert slope(points) == pytest.approx(rise, abs=1e-3)
    assert slope([(float(at), start + rise * at) for at in range(count)]) == pytest.approx(rise, abs=1e-6)


def _samples(values: list[float]) -> list[dict[str, float]]:
    return [{"at": 60.0 * number, "memory_mib": value} for number, value in enumerate(values)]


def test_a_leak_of_one_percent_a_minute_grows_and_noise_around_a_level_is_flat() -> None:
    dice = random.Random(1)
    noise = [1000 + dice.uniform(-60, 60) for _ in range(30)]
    (flat,) = judge(_samples(noise))
    assert flat.flat
    (leak,) = judge(_samples([value + 10 * number for number, value in enumerate(noise)]))
    assert not leak.flat
    assert leak.growth == pytest.approx(150, abs=60)


def test_the_first_half_is_not_judged_nor_one_high_sample() -> None:
    warming = [100 + 50 * number for number in range(15)] + [850.0] * 15
    assert judge(_samples(warming))[0].flat
    spike = [850.0] * 29 + [5000.0]
    assert judge(_samples(spike))[0].flat


def test_without_samples_nothing_is_called_flat_and_every_bound_allows_something() -> None:
    assert judge([]) == []
    assert judge(_samples([1.0])) == []
    assert all(bound.of(0.0) > 0 for bound in BOUNDS.values())
    assert Bound(share=0.1, least=5).of(1000) == 100


def test_what_is_at_work_just_then_is_no_growth_and_what_stays_is() -> None:
    """Descriptors of the tasks under way come and go; those that are never given back raise the lowest ones too."""
    dice = random.Random(2)
    late_burst = [450.0 + (dice.choice((0, 0, 150)) if number > 20 else 0) for number in range(30)]
    assert _descriptors(late_burst).flat
    assert not _descriptors([value + 4 * number for number, value in enumerate(late_burst)]).flat


def _descriptors(values: list[float]) -> Judged:
    (judged,) = judge([{"at": 60.0 * number, "descriptors": value} for number, value in enumerate(values)])
    return judged


def test_percentiles_are_of_the_values_themselves() -> None:
    found = percentiles({"submit": [float(number) for number in range(100, 0, -1)]})["submit"]
    assert found == {"count": 100, "p50": 51.0, "p95": 96.0, "p99": 100.0, "max": 100.0}
