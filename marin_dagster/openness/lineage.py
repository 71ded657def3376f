"""Turns recipes and their inputs into a drawing: inputs on the left, what is made of them right."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 190, 46  # pixels of a box
GAP_X, GAP_Y = 48, 18
MARGIN = 8


def depths(inputs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The longest way from a source to each address; `inputs` lists inputs before their readers."""
    found: dict[str, int] = {}
    for address, sources in inputs.items():
        found[address] = 1 + max((found[source] for source in sources), default=-1)
    return found


def lineage_svg(inputs: Mapping[str, Sequence[str]], targets: Sequence[str]) -> str:
    """An SVG with a box per address and a line per input; boxes link to `#address`."""
    places = _places(inputs)
    width = max(x for x, _ in places.values()) + WIDTH + MARGIN
    height = max(y for _, y in places.values()) + HEIGHT + MARGIN
    lines = [
        _line(places[source], places[address])
        for address, sources in inputs.items()
        for source in sources
    ]
    boxes = [_box(address, places[address], address in targets) for address in inputs]
    return (
        f'<svg class="lineage" xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Lineage">{"".join(lines)}{"".join(boxes)}</svg>'
    )


def _places(inputs: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, int]]:
    """Left upper corners; a box stands as near as it can to the mean height of its inputs."""
    columns: dict[int, list[str]] = {}
    for address, depth in depths(inputs).items():
        columns.setdefault(depth, []).append(address)
    places: dict[str, tuple[int, int]] = {}
    for depth, column in sorted(columns.items()):
        wished = {
            address: sum(places[source][1] for source in inputs[address])
            / max(len(inputs[address]), 1)
            for address in column
        }
        free = MARGIN
        for address in sorted(column, key=lambda address: wished[address]):
            y = max(free, int(wished[address]))
            places[address] = (MARGIN + depth * (WIDTH + GAP_X), y)
            free = y + HEIGHT + GAP_Y
    return places


def _line(source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1 = source[0] + WIDTH, source[1] + HEIGHT // 2
    x2, y2 = target[0], target[1] + HEIGHT // 2
    bend = GAP_X // 2
    return f'<path d="M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"/>'


def _box(address: str, place: tuple[int, int], is_target: bool) -> str:
    stage, _, key = address.partition("/")
    x, y = place
    kind = ' class="target"' if is_target else ""
    shown = key if len(key) <= 27 else key[:26] + "…"
    return (
        f'<a href="#{escape(address)}"><title>{escape(address)}</title>'
        f'<rect{kind} x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        f'<text class="stage" x="{x + 10}" y="{y + 18}">{escape(stage)}</text>'
        f'<text x="{x + 10}" y="{y + 36}">{escape(shown)}</text></a>'
    )
