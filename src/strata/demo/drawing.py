"""Numbers drawn with characters: a line of bars, and a curve with its scale."""

from collections.abc import Sequence
from itertools import pairwise
from math import log

BARS = " ▁▂▃▄▅▆▇█"
STEEP = 10.0
"""Where the largest is so many times the smallest, heights are those of logarithms."""


def bars(values: Sequence[float], width: int) -> str:
    """In one line, from the smallest to the largest; each of many values is part of a mean."""
    heights = _heights(_buckets(values, width))
    return "".join(BARS[1 + round(height * (len(BARS) - 2))] for height in heights)


def curve(points: Sequence[tuple[int, float]], width: int, height: int) -> list[str]:
    """Values over steps, in so many lines with the scale at the left, and a line with the first and the last step."""
    if not points:
        return ["nothing to draw"]
    means = _buckets([value for _, value in points], width)
    eighths = [round(each * (8 * height - 1)) + 1 for each in _heights(means)]
    most, least = max(means), min(means)
    lines = []
    for row in reversed(range(height)):
        scale = f"{most:.3g}" if row == height - 1 else f"{least:.3g}" if row == 0 else ""
        cells = "".join(BARS[max(0, min(8, each - 8 * row))] for each in eighths)
        lines.append(f"{scale:>8} │{cells}".rstrip())
    first, last = f"step {points[0][0]:,}", f"{points[-1][0]:,}"
    lines.append(f"{'':>8} └{'─' * len(means)}")
    lines.append(f"{'':>10}{first}{last:>{max(len(last) + 1, len(means) - len(first))}}")
    return lines


def is_steep(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) >= STEEP * min(values)


def _buckets(values: Sequence[float], width: int) -> list[float]:
    """The means of so many stretches of equal length, or the values, where they are fewer."""
    count = min(width, len(values))
    edges = [len(values) * number // count for number in range(count + 1)] if count else [0]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]


def _heights(values: Sequence[float]) -> list[float]:
    """From 0 for the smallest to 1 for the largest."""
    scaled = [log(each) for each in values] if is_steep(values) else list(values)
    least, most = min(scaled, default=0.0), max(scaled, default=0.0)
    return [(each - least) / (most - least) if most > least else 0.0 for each in scaled]
