import math
import re
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from marin_dagster.plots import decimate, line_chart, sketch

STEPS = list(range(1, 10_001))
LOSS = [8 * math.exp(-step / 2_000) + 2 + 0.3 * math.sin(step * 7.3) for step in STEPS]
LOSS[6_543] = 14.5  # a spike of one step
LIMIT = 1_000


@pytest.fixture(scope="module")
def chart() -> str:
    few = STEPS[::500]
    series = {"training": (STEPS, LOSS), "validation & more": (few, [LOSS[s - 1] for s in few])}
    return line_chart(series, "Loss", "step", "nats per token", {"unigram entropy": 5.5})


def picture(markdown: str) -> ElementTree.Element:
    found = re.match(r"!\[\]\(<data:image/svg\+xml,([^<>]*)>\)", markdown)
    assert found is not None
    return ElementTree.fromstring(unquote(found[1]))


def test_a_chart_of_ten_thousand_points_is_small_and_says_what_it_left_out(chart):
    assert len(chart.encode()) < 40_000
    assert "600 of 10,000 points drawn" in chart


def test_a_sketch_fits_and_shows_the_spike_and_both_ends(chart):
    text = sketch(chart, LIMIT)
    assert len(text) < LIMIT
    assert re.search(r"\n\d+ of 10,000 points$", text)
    drawn = picture(text)
    words = [item.text for item in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"14.5", "1 – 10000"} <= set(words)
    names = [item.text.strip() for item in drawn.iter("{http://www.w3.org/2000/svg}tspan")]
    assert names == ["training", "validation & more", "unigram entropy"]


def test_a_sketch_has_as_many_points_as_there_is_room_for():
    chart = line_chart({"loss": (STEPS[:20], LOSS[:20])}, "Loss", "step", "nats", log_y=True)
    text = sketch(chart, LIMIT)
    assert "points" not in text  # all are there
    path = picture(text).find("{http://www.w3.org/2000/svg}path").get("d")
    assert len(re.findall(r"-?\d+", path)) == 2 * 20
    assert sketch(chart, 100) is None


def test_a_picture_of_somebody_else_has_no_sketch():
    assert sketch("<svg xmlns='http://www.w3.org/2000/svg'/>", LIMIT) is None


@pytest.mark.parametrize("limit", [8, 9, 80, 600])
def test_decimation_keeps_both_ends_and_the_extremes(limit):
    xs, ys = decimate((STEPS, LOSS), limit)
    assert len(xs) <= limit
    assert (xs[0], xs[-1]) == (1, 10_000)
    assert {min(LOSS), max(LOSS)} <= set(ys)
    assert list(xs) == sorted(set(xs))


def test_points_that_are_not_finite_are_not_drawn():
    chart = line_chart({"loss": ([1, 2, 3], [3.0, math.nan, 1.0])}, "Loss", "step", "nats")
    assert decimate(([1, 2, 3], [3.0, math.inf, 1.0]), 8) == ([1, 3], [3.0, 1.0])
    assert "NaN" not in chart
    assert picture(sketch(chart, LIMIT)) is not None
    assert sketch(line_chart({"loss": ([], [])}, "Loss", "step", "nats"), LIMIT)
