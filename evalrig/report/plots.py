"""Plots as SVG that can stand inside a page: no script, no style attributes, colours from the page, ids of their own.

Matplotlib draws; its output is then parsed and rewritten, so that a strict content security policy holds, several
plots share a page, and lines and text follow the page's colours in light, in dark and in print.
"""

import math
import re
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any
from xml.etree import ElementTree as ET

from evalrig.report.shown import Bar, Curve, DistanceView, Forest
from evalrig.report.shown_load import Line, Picture
from evalrig.report.shown_steps import Fall, SurvivalView
from evalrig.report.words import short

SVG = "http://www.w3.org/2000/svg"
INK, QUIET, LIMIT, PAPER = "#010101", "#020202", "#030303", "#fdfdfd"
SERIES = ("#040404", "#050505", "#060606", "#070707", "#080808", "#090909")
"""Stand-ins: what matplotlib draws in these becomes a variable of the page's style sheet."""
COLOURS = {
    INK: "currentColor",
    QUIET: "var(--quiet)",
    LIMIT: "var(--limit)",
    PAPER: "var(--page)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES)},
}
MARKERS = ("o", "s", "^", "D", "v", "P")
SETTINGS: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "text.parse_math": False,
    "axes.linewidth": 0.8,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
LONGEST_NAME = 28
LEFT_ALONE = ("backend", "interactive", "toolbar", "timezone", "date", "webagg")


def forest(plot: Forest, number: int) -> str:
    """A line an arm: the difference with its interval, the margin and zero."""
    prefix = f"forest{number}"
    with _settings(prefix):
        figure, axes = _figure(6.4, 1.25 + 0.36 * len(plot.bars))
        for row, bar in enumerate(plot.bars):
            _bar(axes, row, bar)
        axes.axvline(0, color=INK, linewidth=0.9, zorder=1)
        if plot.margin is not None:
            _limit(axes, plot.margin)
        axes.set_yticks(range(len(plot.bars)), [_name(bar.arm) for bar in plot.bars])
        axes.set_ylim(len(plot.bars) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlim(*_range(plot))
        figure.supxlabel(plot.axis, fontsize="medium")
        return inline(_drawn(figure), prefix, plot.title, plot.description)


def _limit(axes: Any, margin: float) -> None:
    axes.axvline(margin, color=LIMIT, linewidth=1.4, linestyle=(0, (5, 3)), zorder=1)
    above = {"xycoords": ("data", "axes fraction"), "xytext": (0, 4), "textcoords": "offset points"}
    axes.annotate("margin", (margin, 1), ha="center", color=LIMIT, **above)


def _bar(axes: Any, row: int, bar: Bar) -> None:
    """A limit that does not exist is drawn as an arrow to the edge."""
    colour = QUIET if bar.noise else SERIES[0]
    if bar.value is None:
        _aside(axes, "no pairs", (0.0, row))
        return
    limits = ((bar.low, 0.0), (bar.high, 1.0))
    if bar.low is None and bar.high is None:
        _aside(axes, "no valid interval", (bar.value, row))
        limits = ()
    for limit, end in limits:
        if limit is None:
            axes.annotate(
                "",
                (end, row),
                xycoords=("axes fraction", "data"),
                xytext=(bar.value, row),
                textcoords="data",
                arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.8},
            )
        else:
            axes.plot([bar.value, limit], [row, row], color=colour, linewidth=1.8, solid_capstyle="butt")
            axes.plot([limit, limit], [row - 0.1, row + 0.1], color=colour, linewidth=1.8)
    face = "none" if bar.noise else colour
    axes.plot([bar.value], [row], "o", color=colour, markerfacecolor=face, markersize=6.5, zorder=3)


def _aside(axes: Any, words: str, at: tuple[float, float]) -> None:
    back = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.5}
    place = {"xytext": (-9, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
    axes.annotate(words, at, color=QUIET, bbox=back, zorder=4, **place)


def _range(plot: Forest) -> tuple[float, float]:
    """Zero, the margin and every limit, with room at both ends."""
    shown = [x for bar in plot.bars for x in (bar.value, bar.low, bar.high) if x is not None]
    shown += [0.0, *([plot.margin] if plot.margin is not None else [])]
    low, high = min(shown), max(shown)
    room = 0.08 * (high - low) or 1.0
    return low - room, high + room


def positions(view: DistanceView, number: int) -> str:
    """Mean distance by position in the answer, both axes logarithmic; a curve an arm, the floor broken."""
    prefix, curves = f"positions{number}", view.positions.curves
    with _settings(prefix):
        columns = _legend_columns(curves)
        figure, axes = _figure(6.4, 3.7 + 0.22 * math.ceil(len(curves) / columns))
        drawn = [_curve(axes, curve, at, len(curves)) for at, curve in enumerate(curves)]
        if any(drawn):
            _logarithmic(axes, curves)
            figure.legend(loc="outside upper left", ncols=columns, handletextpad=0.5)
        else:
            axes.text(0.5, 0.5, "no distance above 0", transform=axes.transAxes, ha="center", color=QUIET)
        axes.set_xticks(range(len(view.positions.octaves)), view.positions.octaves)
        axes.set_xlim(-0.5, len(view.positions.octaves) - 0.5)
        axes.set_xlabel("position in the answer, tokens")
        axes.set_ylabel("mean KL, nats per token")
        title = f"{view.suite}: distance by position in the answer"
        return inline(_drawn(figure), prefix, title, view.positions.description)


def survival(view: SurvivalView, number: int) -> str:
    """Share of attempts without an event, step by step; limits as thin lines of the same colour."""
    prefix = f"survival{number}"
    with _settings(prefix):
        columns = _legend_columns(view.curves)
        figure, axes = _figure(6.4, 3.4 + 0.22 * math.ceil(len(view.curves) / columns))
        candidates = [curve.arm for curve in view.curves if curve.kind == "candidate"]
        for curve in view.curves:
            at = candidates.index(curve.arm) if curve.kind == "candidate" else -1
            _fall(axes, curve, view.last, {"reference": INK, "noise": QUIET}.get(curve.kind, SERIES[at % len(SERIES)]))
        figure.legend(loc="outside upper left", ncols=columns, handletextpad=0.5)
        axes.set_xlim(0, view.last)
        axes.set_ylim(0, 1.02)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("step")
        axes.set_ylabel(view.axis)
        return inline(_drawn(figure), prefix, view.title, view.description)


def _fall(axes: Any, curve: Fall, last: int, colour: str) -> None:
    """From 100 % at the start to the last step of any attempt."""
    steps = [0, *curve.steps, last]
    style: Any = {"where": "post", "color": colour}
    for shares, more in (
        (curve.shares, {"linewidth": 1.6, "label": _name(curve.arm)}),
        (curve.lows, {"linewidth": 0.5}),
        (curve.highs, {"linewidth": 0.5}),
    ):
        line = {**style, **more, "linestyle": (0, (4, 3)) if curve.kind == "noise" else "-"}
        axes.step(steps, [1.0, *shares, shares[-1] if shares else 1.0], **line)


def picture(view: Picture, number: int) -> str:
    """Lines in a plane: dots with their intervals, joined or alone, or a count over time; dashed lines are what gates ask for."""
    prefix = f"load{number}"
    with _settings(prefix):
        columns = _legend_columns(view.lines)
        figure, axes = _figure(6.4, 3.7 + 0.22 * math.ceil(len(view.lines) / columns))
        candidates = [line.arm for line in view.lines if line.kind == "candidate"]
        for line in view.lines:
            at = candidates.index(line.arm) if line.kind == "candidate" else -1
            colour = {"reference": INK, "noise": QUIET}.get(line.kind, SERIES[at % len(SERIES)])
            marker = {"reference": "o", "noise": "x"}.get(line.kind, MARKERS[(at + 1) % len(MARKERS)])
            _line(axes, line, view.style, colour, marker)
        limit: Any = {"color": LIMIT, "linewidth": 1.4, "linestyle": (0, (5, 3)), "zorder": 1}
        if view.x_limit is not None:
            axes.axvline(view.x_limit, **limit)
        if view.y_limit is not None:
            axes.axhline(view.y_limit, **limit)
        if view.style != "points":
            axes.set_ylim(bottom=0)
            axes.set_xlim(left=0)
        axes.set_xlabel(view.x_axis)
        axes.set_ylabel(view.y_axis)
        figure.legend(loc="outside upper left", ncols=columns, handletextpad=0.5)
        return inline(_drawn(figure), prefix, view.title, view.description)


def _line(axes: Any, line: Line, style: str, colour: str, marker: str) -> None:
    across, up = [point.x for point in line.points], [point.y for point in line.points]
    dashes: Any = (0, (4, 3)) if line.kind == "noise" else "-"
    if style == "steps":
        axes.step(across, up, where="post", color=colour, linewidth=1.4, linestyle=dashes, label=_name(line.arm))
        return
    for point in line.points:
        if point.across:
            axes.plot(point.across, [point.y, point.y], color=colour, linewidth=1.2)
        if point.up:
            axes.plot([point.x, point.x], point.up, color=colour, linewidth=1.2)
        if point.label:
            place: Any = {"xytext": (5, 5), "textcoords": "offset points", "color": colour, "fontsize": "small"}
            axes.annotate(point.label, (point.x, point.y), **place)
    joined: Any = dashes if style == "curve" else "none"
    axes.plot(across, up, color=colour, marker=marker, linewidth=1.4, linestyle=joined, label=_name(line.arm))


def _legend_columns(curves: Sequence[Curve] | Sequence[Fall] | Sequence[Line]) -> int:
    longest = max((len(_name(curve.arm)) for curve in curves), default=1)
    return max(1, min(len(curves), 72 // (longest + 8)))


def _logarithmic(axes: Any, curves: Sequence[Curve]) -> None:
    """An interval that reaches 0 must not stretch the axis to nothing."""
    lowest = min(bar.value for curve in curves for bar in curve.bars if bar.value and bar.value > 0)
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(axes.get_ylim()[0], lowest / 5))
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    axes.yaxis.set_minor_formatter(lambda value, _: "")


def _curve(axes: Any, curve: Curve, at: int, curves: int) -> bool:
    """Whether anything was drawn: on a logarithmic axis only what is above 0 can be."""
    colour = QUIET if curve.noise else SERIES[at % len(SERIES)]
    shift = min(0.07, 0.4 / curves) * (at - (curves - 1) / 2)
    dots = [(x + shift, bar) for x, bar in enumerate(curve.bars) if bar.value is not None and bar.value > 0]
    for x, bar in dots:
        low, high = bar.low, bar.high
        if low is not None and high is not None:
            axes.plot([x, x], [max(low, 1e-12), max(high, 1e-12)], color=colour, linewidth=1.2)
    style: dict[str, Any] = {"linestyle": (0, (4, 3)) if curve.noise else "-", "color": colour, "linewidth": 1.4}
    marker = "x" if curve.noise else MARKERS[(at + at // len(SERIES)) % len(MARKERS)]
    axes.plot([x for x, _ in dots], [bar.value for _, bar in dots], marker=marker, label=_name(curve.arm), **style)
    return bool(dots)


def _name(arm: str) -> str:
    """Names of variants differ at either end, so a long one loses its middle."""
    return arm if len(arm) <= LONGEST_NAME else f"{arm[: LONGEST_NAME - 12]}…{arm[-11:]}"


@contextmanager
def _settings(salt: str) -> Generator[None]:
    """Ours, whatever the user's matplotlibrc says; ids depend on `salt` and not on chance."""
    from matplotlib import rc_context, rcParamsDefault

    with rc_context(), warnings.catch_warnings():
        from matplotlib import rcParams

        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the reader's own font draws the text
        rcParams.update({key: value for key, value in rcParamsDefault.items() if key.split(".")[0] not in LEFT_ALONE})
        rcParams.update({**SETTINGS, "svg.hashsalt": salt})
        yield


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def _drawn(figure: Any) -> str:
    text = StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return text.getvalue()


def inline(svg: str, prefix: str, title: str, description: str) -> str:
    """Rewrite a whole SVG document as an element for a page; see the module's docstring."""
    ET.register_namespace("", SVG)
    root = ET.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        _rewrite(element, prefix)
    names = [(f"{prefix}-title", "title", title), (f"{prefix}-desc", "desc", description)]
    for place, (name, tag, words) in enumerate(names):
        element = ET.Element(f"{{{SVG}}}{tag}", {"id": name})
        element.text = words
        root.insert(place, element)
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.attrib |= {"role": "img", "aria-labelledby": " ".join(name for name, _, _ in names), "class": "plot"}
    return ET.tostring(root, encoding="unicode")


def _rewrite(element: ET.Element, prefix: str) -> None:
    """Style attributes become presentation attributes; ids and references to them get a prefix."""
    for rule in filter(None, element.attrib.pop("style", "").split(";")):
        name, _, value = rule.partition(":")
        element.attrib.update(_presentation(name.strip(), value.strip()))
    for key, value in list(element.attrib.items()):
        if key == "id":
            element.set(key, f"{prefix}-{value}")
        elif key.endswith("}href"):
            del element.attrib[key]
            element.set("href", f"#{prefix}-{value.removeprefix('#')}")
        elif value.startswith("url(#"):
            element.set(key, f"url(#{prefix}-{value[5:]}")
        elif key in ("fill", "stroke"):
            element.set(key, COLOURS.get(value.lower(), value))


def _presentation(name: str, value: str) -> dict[str, str]:
    if name != "font":
        return {name: value}
    size = re.search(r"([\d.]+)px", value)  # the family is the page's
    return {"font-size": size[1]} if size else {}
