"""Turns series of numbers into SVG text: the same numbers give the same bytes."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 6.4, 3.2  # inches
Points = tuple[Sequence[float], Sequence[float]]


def line_chart(
    series: Mapping[str, Points],
    title: str,
    x: str,
    y: str,
    levels: Mapping[str, float] | None = None,
    log_y: bool = False,
) -> str:
    """Draws lines by name, each (xs, ys); `levels` are dashed horizontal lines by name."""

    def draw(axes: "Axes") -> None:
        for name, (xs, ys) in series.items():
            axes.plot(xs, ys, label=name, linewidth=1.2, marker="." if len(xs) < 12 else "")
        for place, (name, level) in enumerate((levels or {}).items()):
            axes.axhline(level, label=name, linestyle="--", linewidth=1, color=f"C{place + 7}")
        if log_y:
            axes.set_yscale("log")
        if len(series) + len(levels or {}) > 1:
            axes.legend(frameon=False, fontsize=8)

    return _svg(draw, title, x, y)


def _svg(draw, title: str, x: str, y: str) -> str:
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
        FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None})
    return text.getvalue()
