"""How plots look: one column of a paper wide, a marker and a colour per name, no background.

Every plot is written three times: as PNG, and next to it as PDF and SVG. Pages may be light or dark, so PNG and SVG
have grey text that can be read on both; PDF, which goes into papers, has black text.
"""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any, ParamSpec

from tacg.errors import TacgError
from tacg.files import write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

P = ParamSpec("P")
COLUMN, DOUBLE = 3.35, 6.9  # inches: one column of a paper, and both
# distinct for the colour-blind, and readable on light and dark pages
COLOURS = ("#3a88c8", "#d55e00", "#159c77", "#cc79a7", "#d99000", "#56b4e9", "#8f80c4", "#8a8a8a")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p")
USUAL = ("confidence", "tacg", "klass", "tacg+klass", "eb", "schedule", "auto", "swd")  # the same style in every plot
INK, BLACK = "#767c85", "#000000"
ALSO = (".pdf", ".svg")
LOOK: Any = {  # matplotlib types the names of its settings one by one
    "font.size": 7, "axes.titlesize": 7.5, "axes.labelsize": 7, "xtick.labelsize": 6.5, "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5, "lines.linewidth": 1.1, "lines.markersize": 4, "errorbar.capsize": 1.5,
    "pdf.fonttype": 42, "svg.hashsalt": "tacg",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}  # fmt: skip
# The paper's symbols of knobs, where a label has room for them.
SYMBOLS = {
    "threshold": r"\tau", "w": "w", "beta": r"\beta", "support_lambda": r"\lambda", "tau_floor": r"\tau_{floor}",
    "tau_escape": r"\tau_{esc}", "m_base": "m_{base}", "m_extra": "m_{extra}", "k_extra": "K_{extra}",
    "bound": r"\gamma", "kl_threshold": r"\varepsilon_{KL}", "history": "n",
}  # fmt: skip


def styles(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """A colour and a marker for each name, in order; no two names of a plot share both."""
    order = list(dict.fromkeys(names))
    usual = {name: number for number, name in enumerate(USUAL)}
    taken = {usual[name] for name in order if name in usual}
    free = (number for number in range(len(COLOURS) * len(MARKERS)) if number not in taken)
    places = {name: usual[name] if name in usual else next(free) for name in order}
    return {
        name: {
            "color": COLOURS[place % len(COLOURS)],
            "marker": MARKERS[(place % len(COLOURS) + place // len(COLOURS)) % len(MARKERS)],
        }
        for name, place in places.items()
    }


def symbol(knobs: str) -> str:
    """A knob, or `a+b`, with its symbol in the paper: λ (support_lambda)."""
    found = [SYMBOLS[name] for name in knobs.split("+") if name in SYMBOLS]
    return f"${' = '.join(found)}$ ({knobs.replace('+', ', ')})" if found else knobs


def styled(draw: Callable[P, Path]) -> Callable[P, Path]:
    """Decorator of functions that draw: they use these sizes and inks, and leave the user's own settings alone."""

    @functools.wraps(draw)
    def drawn(*rows: P.args, **more: P.kwargs) -> Path:
        try:
            import matplotlib
        except ImportError:
            raise TacgError("A plot needs matplotlib: pip install 'tacg[plots]', or leave the plot out.") from None
        matplotlib.use("Agg")
        with matplotlib.rc_context(LOOK):
            return draw(*rows, **more)

    return drawn


def panels_of(titles: Sequence[str], columns: int = 1, height: float = 2.3) -> tuple[Any, list[tuple[str, Any]]]:
    """A figure and its panels, one per title; three in a line take both columns of a paper."""
    from matplotlib import pyplot

    lines, width = -(-len(titles) // columns), COLUMN if columns < 3 else DOUBLE
    figure, grid = pyplot.subplots(lines, columns, figsize=(width, height * lines), squeeze=False, layout="constrained")
    panels = list(zip(titles, grid.flat, strict=False))
    for panel in grid.flat[len(titles) :]:
        panel.set_axis_off()
    for _, panel in panels:
        panel.grid(alpha=0.25, linewidth=0.5)
    return figure, panels


def save(figure: Any, panels: Sequence[tuple[str, Any]], path: Path, about: str) -> Path:
    """Write a figure under one legend; a PNG is joined by a PDF and an SVG of the same name."""
    from matplotlib import pyplot

    named: dict[str, Any] = {}
    for _, panel in panels:
        handles, labels = panel.get_legend_handles_labels()
        named = dict(zip(labels, handles, strict=True)) | named
    if named:
        across = min(len(named), 3 if figure.get_figwidth() <= COLUMN else 6)
        figure.legend(
            named.values(), named.keys(), loc="outside lower center", ncols=across, frameon=False, handletextpad=0.4,
            columnspacing=1.2,
        )  # fmt: skip
    figure.suptitle(about, fontsize=6.5)
    try:
        _write(figure, path)
        for suffix in ALSO if path.suffix in ("", ".png") else ():
            _write(figure, path.with_suffix(suffix))
    finally:
        pyplot.close(figure)
    return path


def _write(figure: Any, path: Path) -> None:
    kind = path.suffix[1:] or "png"
    _recolour(figure, *((INK, BLACK) if kind == "pdf" else (BLACK, INK)))
    drawn = io.BytesIO()
    stamp = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)  # the same bytes for the same rows
    try:
        figure.savefig(drawn, dpi=220, format=kind, transparent=True, metadata=stamp)
    except ValueError:
        known = ", ".join(sorted(figure.canvas.get_supported_filetypes()))
        raise TacgError(f"A plot's file must end in one of {known}; got {str(path)!r}.") from None
    write_file(path, drawn.getvalue())


def _recolour(figure: Any, before: str, after: str) -> None:
    """Text, axes and ticks in another ink; what has its own colour keeps it."""
    from matplotlib.colors import same_color
    from matplotlib.spines import Spine
    from matplotlib.text import Text

    for each in figure.findobj(Text):
        if not each.get_gid() and same_color(each.get_color(), before):
            each.set_color(after)
    for each in figure.findobj(Spine):
        each.set_edgecolor(after)
    for panel in figure.axes:
        panel.tick_params(color=after)
