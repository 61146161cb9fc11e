"""The accuracy-TPF plane, drawn from rows. Needs the extra `plots`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COLOURS = ["#4c72b0", "#c44e52", "#55a868", "#8172b3", "#ccb974", "#64b5cd", "#8c8c8c", "#da8bc3"]


def draw_plane(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """One panel a task: each policy a point with its interval, an arrow from a base policy to its gated form."""
    try:
        import matplotlib
    except ImportError:
        raise TacgError("A picture needs matplotlib: pip install 'tacg[plots]', or leave the picture out.") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    names = list(dict.fromkeys(row["policy"] for row in rows))
    colour = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    figure, panels = pyplot.subplots(1, len(tasks), figsize=(4.6 * len(tasks), 4), squeeze=False)
    for panel, task in zip(panels[0], tasks, strict=True):
        mine = {row["policy"]: row for row in rows if row["task"] == task}
        for name, row in mine.items():
            low, high = (100 * edge for edge in row["accuracy_ci"])
            y = 100 * row["accuracy"]
            panel.errorbar(
                row["tpf"], y, yerr=[[y - low], [high - y]], fmt="o", color=colour[name], label=name, capsize=3
            )
            if (base := mine.get(row.get("base"))) is not None:
                panel.annotate(
                    "", (row["tpf"], y), (base["tpf"], 100 * base["accuracy"]),
                    arrowprops={"arrowstyle": "->", "color": colour[name], "alpha": 0.6},
                )  # fmt: skip
        panel.set(title=task, xlabel="tokens per forward", ylabel="accuracy, %")
        panel.grid(alpha=0.3)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=min(5, len(labels)), frameon=False)
    first = rows[0]
    figure.suptitle(f"{first['model']}, n = {first['n']} a task, seed {first['seed']}, 95 % intervals", fontsize=10)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path
