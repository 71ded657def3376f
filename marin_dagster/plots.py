"""Turns series of numbers into SVG text: the same numbers give the same bytes.

A chart carries the numbers that it shows, so that a smaller one can be drawn from it later.
"""

import html
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 6.4, 3.2  # inches
CHART_POINTS = 600  # of one line in a chart; it is about as many pixels wide
CARRIED_POINTS = 160  # of one line, as numbers
SKETCH_WIDTH, SKETCH_HEIGHT, MARGIN = 360, 130, 12  # pixels
COLORS = ("royalblue", "tomato", "seagreen", "purple", "gray")
Points = tuple[Sequence[float], Sequence[float]]


def line_chart(
    series: Mapping[str, Points],
    title: str,
    x: str,
    y: str,
    levels: Mapping[str, float] | None = None,
    log_y: bool = False,
) -> str:
    """Draws lines by name, each (xs, ys); `levels` are dashed horizontal lines by name.

    Of a long line, the lowest and the highest point of every interval are drawn; the axis says so.
    """
    levels = levels or {}
    longest = max((len(xs) for xs, _ in series.values()), default=0)
    drawn = {name: decimate(points, CHART_POINTS) for name, points in series.items()}

    def draw(axes: "Axes") -> None:
        for name, (xs, ys) in drawn.items():
            axes.plot(xs, ys, label=name, linewidth=1.2, marker="." if len(xs) < 12 else "")
        for place, (name, level) in enumerate(levels.items()):
            axes.axhline(level, label=name, linestyle="--", linewidth=1, color=f"C{place + 7}")
        if log_y:
            axes.set_yscale("log")
        if len(series) + len(levels) > 1:
            axes.legend(frameon=False, fontsize=8)

    fewer = f" ({CHART_POINTS} of {longest:,} points drawn)" if longest > CHART_POINTS else ""
    carried = {
        "series": {
            name: [list(map(_short, part)) for part in decimate(points, CARRIED_POINTS)]
            for name, points in series.items()
        },
        "levels": {name: _short(level) for name, level in levels.items()},
        "log_y": log_y,
        "points": longest,
    }
    return _svg(draw, title, x + fewer, y, json.dumps(carried, separators=(",", ":")))


def sketch(chart: str, limit: int) -> str | None:
    """A small picture of a chart as Markdown of less than `limit` characters.

    None for an SVG text that `line_chart` did not draw, and when the limit is too low for it.
    """
    found = re.search(r"<dc:description>(.*?)</dc:description>", chart, re.DOTALL)
    if found is None:
        return None
    carried = json.loads(html.unescape(found[1]))
    for points in (80, 64, 48, 40, 32, 24, 16, 12, 8):
        few = {name: decimate((xs, ys), points) for name, (xs, ys) in carried["series"].items()}
        picture = quote(_small_svg(few, carried), safe=" ='/:.,-()+;")
        shown = max((len(xs) for xs, _ in few.values()), default=0)
        text = f"![](<data:image/svg+xml,{picture}>)"
        if shown < carried["points"]:
            text += f"\n\n{shown} of {carried['points']:,} points"
        if len(text) < limit:
            return text
    return None


def decimate(points: Points, limit: int) -> Points:
    """At most `limit` (8 or more) points: both ends, the lowest and the highest of each interval.

    Points that are not finite are left out.
    """
    whole = [(x, y) for x, y in zip(*points, strict=True) if math.isfinite(y)]
    kept = whole
    if len(whole) > limit:
        inner, parts = whole[1:-1], (limit - 2) // 2
        kept = whole[:1]
        for part in range(parts):
            rows = inner[len(inner) * part // parts : len(inner) * (part + 1) // parts]
            extremes = (
                min(rows, key=lambda point: point[1]),
                max(rows, key=lambda point: point[1]),
            )
            kept += sorted(set(extremes))
        kept += whole[-1:]
    return [x for x, _ in kept], [y for _, y in kept]


def _svg(draw: Callable[["Axes"], None], title: str, x: str, y: str, carried: str) -> str:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: Any = {
        "svg.fonttype": "none",  # text stays text: small, searchable
        "svg.hashsalt": "marin-dagster",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(x, fontsize=9)
        axes.set_ylabel(y, fontsize=9)
        text = io.StringIO()
        facts: Any = {"Date": None, "Creator": None, "Description": carried}
        FigureCanvasSVG(figure).print_svg(text, metadata=facts)
    return _with_short_numbers(text.getvalue())


def _with_short_numbers(svg: str) -> str:
    """Rounds the coordinates of paths to a hundredth of a point."""
    return re.sub(
        r' d="[^"]*"',
        lambda path: re.sub(r"-?\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}", path[0]),
        svg,
    )


def _small_svg(series: Mapping[str, Points], carried: Mapping[str, Any]) -> str:
    """Lines, the names of more than one, and the ranges of both axes."""
    every_x = [x for xs, _ in series.values() for x in xs]
    every_y = [y for _, ys in series.values() for y in ys] + list(carried["levels"].values())
    if not every_x:
        return ""
    log = carried["log_y"] and min(every_y) > 0
    left, right = min(every_x), max(every_x)
    low, high = min(every_y), max(every_y)

    def across(x: float) -> int:
        return round(SKETCH_WIDTH * _share(x, left, right))

    def down(y: float) -> int:
        share = _share(math.log(y), math.log(low), math.log(high)) if log else _share(y, low, high)
        return round(MARGIN + (SKETCH_HEIGHT - 2 * MARGIN) * (1 - share))

    parts, names = [], []
    for color, (name, (xs, ys)) in zip(COLORS, series.items(), strict=False):
        pairs = [(across(x), down(y)) for x, y in zip(xs, ys, strict=True)]
        parts.append(f"<path d='{_path(pairs)}' stroke='{color}'/>")
        names.append((name, color))
    for color, (name, level) in zip(COLORS[::-1], carried["levels"].items(), strict=False):
        parts.append(f"<path d='M0 {down(level)}h{SKETCH_WIDTH}' stroke='{color}'/>")
        names.append((name, color))
    spans = "".join(f"<tspan fill='{color}'>{html.escape(name)} </tspan>" for name, color in names)
    base = SKETCH_HEIGHT - 1
    parts.append(
        f"<g font-size='10' font-family='sans-serif' fill='gray'>"
        f"<text y='9'>{high:.4g}{' log' if log else ''}</text>"
        f"<text y='{base}'>{low:.4g}</text>"
        f"<text x='{SKETCH_WIDTH}' y='{base}' text-anchor='end'>{left:.6g} – {right:.6g}</text>"
        f"<text x='{SKETCH_WIDTH}' y='9' text-anchor='end'>{spans}</text></g>"
    )
    size = f"width='{SKETCH_WIDTH}' height='{SKETCH_HEIGHT}'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size} fill='none'>{''.join(parts)}</svg>"


def _path(pairs: Sequence[tuple[int, int]]) -> str:
    """A path of steps from point to point: `m0 80 3-5 3 2`."""
    text, last = "m", (0, 0)
    for pair in pairs:
        for number in (pair[0] - last[0], pair[1] - last[1]):
            text += f"{number}" if text == "m" or number < 0 else f" {number}"
        last = pair
    return text


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _short(value: float) -> int | float:
    return int(value) if float(value).is_integer() else float(f"{value:.5g}")
