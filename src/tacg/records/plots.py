"""Plots drawn from rows. They need the extra `plots`; `plot_style` says how they look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacg.records.bins import bin_names
from tacg.records.plot_style import COLOURS, INK, MARKERS, panels_of, save, styled, styles, symbol
from tacg.records.stats import front

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tacg.records.rows import ResultRow


@styled
def draw_plane(rows: Sequence[ResultRow], path: Path) -> Path:
    """The accuracy-TPF plane, one panel per task: policies are points, arrows lead from a base to its gated form."""
    style = styles(row["name"] for row in rows)
    figure, panels = panels_of(_tasks(rows))
    for task, panel in panels:
        mine = {row["name"]: row for row in rows if row["task"] == task}
        for name, row in mine.items():
            _point(panel, row, style[name], name)
            if (base := mine.get(row.get("base"))) is not None:
                panel.annotate(
                    "", (row["tpf"], 100 * row["accuracy"]), (base["tpf"], 100 * base["accuracy"]),
                    arrowprops={"arrowstyle": "->", "color": style[name]["color"], "alpha": 0.6},
                )  # fmt: skip
        panel.set(title=task, xlabel="tokens per forward", ylabel="accuracy, %")
    return save(figure, panels, path, f"{_about(rows)}, 95 % intervals")


@styled
def draw_frontier(rows: Sequence[ResultRow], path: Path) -> Path:
    """Accuracy over TPF as one knob varies, one line per policy; its value is written at each point."""
    style = styles(row["spec"] for row in rows)
    figure, panels = panels_of(_tasks(rows))
    for task, panel in panels:
        for spec, look in style.items():
            mine = [row for row in rows if (row["task"], row["spec"]) == (task, spec)]
            mine.sort(key=lambda row: row["tpf"])
            panel.plot([row["tpf"] for row in mine], [100 * row["accuracy"] for row in mine], color=look["color"])
            for row in mine:
                _point(panel, row, look, spec if row is mine[0] else None)
                value = row["x"] if "x" in row else row["settings"].get("threshold", "")
                panel.annotate(
                    str(value), (row["tpf"], 100 * row["accuracy"]), (3, 3), textcoords="offset points",
                    fontsize=5, color=look["color"],
                )  # fmt: skip
        panel.set(title=task, xlabel="tokens per forward", ylabel="accuracy, %")
    return save(
        figure,
        panels,
        path,
        f"{_about(rows)}, 95 % intervals\nat each point: {symbol(rows[0].get('x_name', 'threshold'))}",
    )


@styled
def draw_heat(rows: Sequence[ResultRow], path: Path) -> Path:
    """Two knobs against each other: one line of panels per task, accuracy on the left, TPF on the right."""
    tasks = _tasks(rows)
    figure, panels = panels_of([f"{task}: {what}" for task in tasks for what in ("accuracy, %", "TPF")], 2, height=1.8)
    xs, ys = (list(dict.fromkeys(row[axis] for row in rows)) for axis in ("x", "y"))
    for number, (title, panel) in enumerate(panels):
        mine = {(row["x"], row["y"]): row for row in rows if row["task"] == tasks[number // 2]}
        values = [[mine[x, y]["tpf"] if number % 2 else 100 * mine[x, y]["accuracy"] for x in xs] for y in ys]
        image = panel.imshow(values, aspect="auto", cmap="viridis", origin="lower")
        figure.colorbar(image, ax=panel, shrink=0.9, pad=0.03).outline.set_visible(False)
        middle = (max(map(max, values)) + min(map(min, values))) / 2
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                shade = "black" if value > middle else "white"
                panel.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=4.5, color=shade, gid="cell")
        panel.set_xticks(range(len(xs)), [str(x) for x in xs], fontsize=5)
        panel.set_yticks(range(len(ys)), [str(y) for y in ys], fontsize=5)
        panel.set(title=title, xlabel=symbol(rows[0]["x_name"]), ylabel=symbol(rows[0]["y_name"]))
        panel.grid(visible=False)
    return save(figure, panels, path, f"{rows[0]['spec']}, {_about(rows)}")


@styled
def draw_dynamics(rows: Sequence[ResultRow], path: Path) -> Path:
    """The paper's Fig. 5: tokens committed at each step minus those that the baseline commits there."""
    groups = list(dict.fromkeys((row["task"], row["gate"], row["over"]) for row in rows))
    style = styles(row["name"] for row in rows if row["name"] != "baseline")
    figure, panels = panels_of([f"{task} over {over}" for task, _, over in groups], height=1.8)
    for (task, gate, _), (title, panel) in zip(groups, panels, strict=True):
        mine = {row["name"]: row["commits_by_step"] for row in rows if (row["task"], row["gate"]) == (task, gate)}
        plain = mine.pop("baseline")
        for name, pace in mine.items():
            length = max(len(pace), len(plain))
            more = [_at(pace, step) - _at(plain, step) for step in range(length)]
            panel.plot(range(1, length + 1), more, **style[name], label=name, markevery=0.15)
        panel.axhline(0, color="#999", linewidth=0.8)
        panel.set(title=title, xlabel="step", ylabel="tokens beyond the baseline")
    return save(figure, panels, path, _about(rows))


@styled
def draw_match(rows: Sequence[ResultRow], path: Path, target: str = "final") -> Path:
    """The paper's Fig. 1: match by streak and by support within bins of confidence, and the calibration curve."""
    titles = [f"{row['task']}: {what}" for row in rows for what in ("streak", "support", "calibration")]
    figure, panels = panels_of(titles, columns=3, height=2.0)
    for number, (title, panel) in enumerate(panels):
        row, signal = rows[number // 3], ("streak", "support", "confidence")[number % 3]
        cells = [each for each in row["bins"] if (each["target"], each["signal"]) == (target, signal)]
        if signal == "confidence":
            _whisker(
                panel,
                [each["mean_confidence"] for each in cells],
                cells,
                {"color": INK, "marker": "o"},
                "all proposals",
            )
            panel.plot([0, 1], [0, 100], color="#999", linewidth=0.8)
            panel.set(title=title, xlabel="confidence", ylabel="match, %")
            continue
        looks = [{"color": one, "marker": other} for one, other in zip(COLOURS, MARKERS, strict=False)]
        for level, name in enumerate(bin_names("confidence")):
            line = sorted((each for each in cells if each["confidence"] == level and each["count"] >= 20), key=_bin)
            if line:
                _whisker(panel, [each["bin"] for each in line], line, looks[level], f"confidence {name}")
        panel.set_xticks(range(len(bin_names(signal))), bin_names(signal), fontsize=5.5)
        panel.set(title=title, xlabel=signal, ylabel=f"match with {target} token, %")
    about = f"{rows[0]['model']}, {rows[0]['policy']}, {sum(row['proposals'] for row in rows)} proposals"
    return save(figure, panels, path, about)


@styled
def draw_law(rows: Sequence[ResultRow], path: Path) -> Path:
    """One panel per gate, one point per cell: the steps that it saves over a feature. A line at the mean over cells.

    rows  cells with `gate`, `gain` and its interval, `feature` and `value`; `expected` where there is a rule
    """
    figure, panels = panels_of(list(dict.fromkeys(row["gate"] for row in rows)))
    style = styles(row["model"] for row in rows)
    for gate, panel in panels:
        cells = [row for row in rows if row["gate"] == gate]
        for model, look in style.items():
            mine = [row for row in cells if row["model"] == model]
            ys = [100 * row["gain"] for row in mine]
            low = [max(0.0, y - 100 * row["gain_ci"][0]) for y, row in zip(ys, mine, strict=True)]
            high = [max(0.0, 100 * row["gain_ci"][1] - y) for y, row in zip(ys, mine, strict=True)]
            panel.errorbar([row["value"] for row in mine], ys, yerr=[low, high], linestyle="", **look, label=model)
        panel.axhline(0, color="#999", linewidth=0.8)
        if "expected" in cells[0]:
            panel.axhline(100 * cells[0]["expected"], color="#999", linewidth=0.8, linestyle="--")
        panel.set(title=gate, xlabel=cells[0]["feature"], ylabel="steps saved at equal score, %")
    return save(figure, panels, path, f"{len(rows) // len(panels)} cells, 95 % intervals; dashed: mean")


@styled
def draw_trials(rows: Sequence[ResultRow], path: Path) -> Path:
    """The trials of a search: quality over steps, with the Pareto front as a line."""
    figure, panels = panels_of([rows[0]["policy"].partition("(")[0]])
    (_, panel), best = panels[0], front(rows)
    panel.plot([row["steps"] for row in rows], [100 * row["quality"] for row in rows], "o", color="#aaa", label="tried")
    panel.plot(
        [row["steps"] for row in best], [100 * row["quality"] for row in best], "o-", color=COLOURS[1], label="front"
    )
    panel.set(xlabel="steps", ylabel="quality, %")
    return save(figure, panels, path, f"{rows[0]['model']}, {len(rows)} trials")


@styled
def draw_gain(rows: Sequence[ResultRow], path: Path) -> Path:
    """Speed-up of each cache over the length of the prompt."""
    families = list(dict.fromkeys(row["family"] for row in rows))
    figure, panels = panels_of(families)
    style = styles(row["cache"] for row in rows)
    for family, panel in panels:
        for mode in dict.fromkeys(row["cache"] for row in rows if row["family"] == family):
            mine = [row for row in rows if (row["family"], row["cache"]) == (family, mode)]
            xs, ys = [row["prompt"] for row in mine], [row["times_faster"] for row in mine]
            panel.plot(xs, ys, **style[mode], label=mode)
        panel.set(title=family, xlabel="prompt, tokens", ylabel="times faster than no cache", ylim=(0, None))
    return save(figure, panels, path, f"random weights, one row, {rows[0]['hardware']}")


@styled
def draw_growth(rows: Sequence[ResultRow], path: Path) -> Path:
    """Milliseconds of each subject as one dimension of the shape varies and the others stay as in the first row."""
    names = [name for name in ("vocabulary", "positions", "batch", "prompt", "masked") if name in rows[0]]
    varied = [name for name in names if len({row[name] for row in rows}) > 1]
    figure, panels = panels_of(varied)
    style = styles(row["subject"] for row in rows)
    for axis, panel in panels:
        fixed = {name: rows[0][name] for name in (*names, "dtype") if name != axis and name in rows[0]}
        mine = sorted((row for row in rows if row | fixed == row), key=lambda row: row[axis])
        for subject in dict.fromkeys(row["subject"] for row in mine):
            points = [row for row in mine if row["subject"] == subject]
            if len(points) > 1:
                spread = [[row["ms"][1] - row["ms"][0], row["ms"][2] - row["ms"][1]] for row in points]
                xs, ys = [row[axis] for row in points], [row["ms"][1] for row in points]
                panel.errorbar(xs, ys, list(zip(*spread, strict=True)), **style[subject], label=subject)
        panel.set(
            title=f"over {axis}", xlabel=axis, ylabel="ms per step, p50 (p20 to p80)", xlim=(0, None), ylim=(0, None)
        )
        panel.locator_params(axis="x", nbins=5)
    return save(figure, panels, path, f"one thing varied at a time, {rows[0]['hardware']}")


@styled
def draw_shares(rows: Sequence[ResultRow], path: Path) -> Path:
    """Tokens per second by batch size, where the time goes, and how far a random model is from pure matrix products."""
    mine, bound = ([row for row in rows if name in row] for name in ("shares", "share_of_limit"))
    figure, panels = panels_of(["speed", "shares", "limit"], columns=3, height=2.2)
    (_, speed), (_, share), (_, limit) = panels
    labels, pace = [str(row["batch"]) for row in mine], [row["tokens_per_second"] for row in mine]
    speed.plot(labels, pace, "o-", color=COLOURS[0])
    speed.set(xlabel="batch", ylabel="tokens per second", ylim=(0, 1.1 * max(pace)))
    limit.plot(
        [str(row["batch"]) for row in bound], [100 * row["share_of_limit"] for row in bound], "o-", color=COLOURS[1]
    )
    limit.set(xlabel="batch", ylabel="of its matrix products, %", ylim=(0, 100), title=bound[0]["model"])
    below = [0.0] * len(mine)
    for number, part in enumerate(mine[0]["shares"]):
        values = [100 * row["shares"][part] for row in mine]
        share.bar(labels, values, bottom=below, color=COLOURS[number], label="scan" if part == "look" else part)
        below = [low + value for low, value in zip(below, values, strict=True)]
    share.set(xlabel="batch", ylabel="share of the time, %")
    return save(figure, panels, path, f"{mine[0]['model']}, {mine[0]['policy']}")


def _bin(cell: ResultRow) -> int:
    return int(cell["bin"])


def _whisker(panel: Any, xs: Sequence[float], cells: Sequence[ResultRow], look: Mapping[str, str], label: str) -> None:
    ys = [100 * cell["match"] for cell in cells]
    low = [max(0.0, y - 100 * cell["match_ci"][0]) for y, cell in zip(ys, cells, strict=True)]
    high = [max(0.0, 100 * cell["match_ci"][1] - y) for y, cell in zip(ys, cells, strict=True)]
    panel.errorbar(xs, ys, yerr=[low, high], **look, label=label, markersize=3)


def _point(panel: Any, row: ResultRow, look: Mapping[str, str], label: str | None) -> None:
    low, high = (100 * edge for edge in row["accuracy_ci"])
    y = 100 * row["accuracy"]
    spread = [[max(0.0, y - low)], [max(0.0, high - y)]]
    panel.errorbar(row["tpf"], y, yerr=spread, linestyle="", **look, label=label)


def _at(values: Sequence[float], place: int) -> float:
    return values[place] if place < len(values) else 0.0


def _tasks(rows: Sequence[ResultRow]) -> list[str]:
    return list(dict.fromkeys(row["task"] for row in rows))


def _about(rows: Sequence[ResultRow]) -> str:
    first, sizes = rows[0], sorted({row["n"] for row in rows})
    many = " or ".join(str(size) for size in sizes)
    return f"{first['model']}, n = {many} per task, seed {first['seed']}"
