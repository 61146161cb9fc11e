"""Run benchmarks on this machine."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    CacheMode,
    Device,
    Dtype,
    Json,
    Model,
    Quick,
    Seed,
    SettingOptions,
    Verifier,
    load_model,
    parse_settings,
    ready_directory,
)
from tacg.cli.shown import present
from tacg.errors import TacgError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tacg.llm import LLM
    from tacg.records.rows import ResultRow

KINDS = (
    "scan",
    "gate",
    "memory",
    "decode",
    "device",
    "cache",
    "load",
    "serve",
    "soak",
    "fleet",
    "graders",
    "agreement",
    "constraint",
    "quantize",
)
LOADING = ("decode", "serve", "soak", "agreement")  # those that load --model in this process
PLACED = ("scan", "gate", "cache")  # those that measure on --device without loading anything
EPILOG = """[bold]Examples[/bold]

tacg bench scan                              a step outside the model, compared with simpler implementations

tacg bench gate                              commit_step in your own loop: by prompt length and by open positions

tacg bench memory                            memory of the reference: fp32, bf16, hidden states

tacg bench decode                            tokens per second by batch size, and where the time goes

tacg bench device                            kernels, reads and uploads per step on a simulated GPU, by source line

tacg bench cache --prompts 256,1024 --json   what each cache saves, by prompt length

tacg bench load --gigabytes 2                peak memory when loading a checkpoint, relative to its size

tacg bench serve --requests 1000             the server under load: latency, tokens per second, every answer checked

tacg bench soak --minutes 30                 the server with well-behaved and faulty clients: errors, losses, leaks

tacg bench fleet --requests 500              two nodes of a Ray cluster, one replica killed half way

tacg bench graders --sets data               are the graders right? correct and wrong answers to the four benchmarks

tacg bench agreement --sources checkouts     do we decode as the authors' code does? compared canvas by canvas

tacg bench constraint --trials 10000         are constraints always met? random constraints and logits; cost; answers

tacg bench quantize                          what int8 and int4 weights cost: perplexity, answers, memory, time"""


def main(
    kind: Annotated[str, typer.Argument(help=f"One of {', '.join(KINDS)}.")],
    prompts: Annotated[str, typer.Option(help="cache: prompt lengths, comma-separated.")] = "256,512,1024,2048",
    gen_length: Annotated[int, typer.Option(help="cache: positions to generate.", min=8)] = 64,
    model: Model = DEFAULT_MODEL,
    verifier: Verifier = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    setting: SettingOptions = None,
    kept: CacheMode = None,
    gigabytes: Annotated[float, typer.Option(help="load, quantize: size of the checkpoint.", min=0.01)] = 2.0,
    requests: Annotated[int, typer.Option(help="serve, fleet, constraint: total number of requests.", min=1)] = 1000,
    trials: Annotated[int, typer.Option(help="constraint: random constraints to decode.", min=2)] = 10_000,
    problems: Annotated[int, typer.Option(help="constraint: problems per task.", min=1)] = 200,
    seed: Seed = 0,
    minutes: Annotated[float, typer.Option(help="soak: duration.", min=0.1, max=24 * 60)] = 30.0,
    sets: Annotated[Path, typer.Option(help="graders: directory with the four benchmarks.")] = Path("data"),
    sources: Annotated[Path, typer.Option(help="agreement: directory with checkouts of the authors' code.")] = Path(
        "checkouts"
    ),
    only: Annotated[
        str,
        typer.Option(
            help="agreement: only decoders with this word in their name; constraint, quantize: only this part."
        ),
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Directory for rows and page; default: runs/bench-KIND.")] = None,
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Run a benchmark and report ratios to a baseline from the same run; rows are appended."""
    from tacg.bench import cache, decode, gate, load, memory, scan
    from tacg.records.plots import draw_gain, draw_growth, draw_shares

    if kind not in KINDS:
        raise unknown("benchmark", kind, KINDS)
    elsewhere = device != "cpu" and kind not in PLACED
    _refuse_unused(
        kind, {"--dtype": dtype != "float32", "--device": elsewhere, "--verifier": verifier is not None},
        {"--set": bool(setting), "--cache": kept is not None},
    )  # fmt: skip
    settings = parse_settings([], setting, kept)

    def loaded() -> LLM:
        return load_model(model, dtype=dtype, device=device, verifier=verifier)

    out = ready_directory(out or Path(f"runs/bench-{kind}"))
    if kind == "scan":
        rows = _collect(scan.measure(quick=quick, device=device), 6 if quick else 24, out)
        present(
            "A step outside the model",
            rows,
            scan.tables(rows),
            {} if quick else {"growth.png": draw_growth},
            out,
            as_json,
        )
    elif kind == "gate":
        rows = _collect(gate.measure(quick=quick, device=device), 12 if quick else 15, out)
        present("commit_step in your own loop", rows, gate.tables(rows), {"growth.png": draw_growth}, out, as_json)
    elif kind == "memory":
        rows = _collect(memory.measure(quick=quick), 3, out)
        present("What the reference takes", rows, memory.tables(rows), {}, out, as_json)
    elif kind == "decode":
        rows = _collect(_decodes(loaded(), settings, quick, device), 6 if quick else 12, out)
        present("Whole decodes", rows, decode.tables(rows), {"shares.png": draw_shares}, out, as_json)
    elif kind == "device":
        from tacg.bench import device as simulated

        rows = _collect(simulated.measure(quick=quick), 4 if quick else 17, out)
        present("A step on a simulated device", rows, simulated.tables(rows), {}, out, as_json)
    elif kind == "cache":
        lengths = _lengths(prompts)[: 2 if quick else None]
        rows = _collect(cache.measure(lengths, gen_length, quick=quick, device=device), 5 * len(lengths), out)
        present("What a cache saves", rows, cache.tables(rows), {"gain.png": draw_gain}, out, as_json)
    elif kind == "load":
        rows = _collect(load.measure(0.05 if quick else gigabytes), 2, out)
        present("What loading costs", rows, load.tables(rows), {}, out, as_json)
    elif kind == "serve":
        from tacg.bench import serve

        clients = (8,) if quick else (32, 64)
        made = serve.measure(loaded(), model, clients, 16 if quick else requests)
        rows = _collect(made, len(clients), out)
        present("The server under load", rows, serve.tables(rows), {}, out, as_json)
    elif kind == "soak":
        from tacg.bench import soak

        rows = _collect(soak.measure(loaded(), model, 0.2 if quick else minutes), 2, out)
        present("The server for a long time", rows, soak.tables(rows), {}, out, as_json)
        if not soak.passed(rows):
            raise typer.Exit(1)
    elif kind == "fleet":
        from tacg.bench import fleet

        rows = _collect(fleet.measure(model, 8 if quick else requests), 4, out)
        present("A fleet on Ray", rows, fleet.tables(rows), {}, out, as_json)
    elif kind == "graders":
        from tacg.bench import graders, number_formats

        limit = 10 if quick else None
        made = itertools.chain(
            graders.measure(sets, limit=limit), number_formats.measure(), graders.measure_styles(sets, limit=limit)
        )
        rows = _collect(made, 101, out)
        present("Do the graders grade?", rows, graders.tables(rows), {}, out, as_json)
    elif kind == "agreement":
        from tacg.bench import agreement
        from tacg.files import write_file
        from tacg.records.flat import read_rows

        pairs = agreement.chosen_pairs(only)
        made = agreement.measure(loaded(), sources, 1 if quick else 7, pairs)
        rows = _collect(made, 2 * len(pairs), out)
        write_file(out / "report.md", agreement.report(read_rows(out / "rows.jsonl")))
        present("Agreement with the authors' code", rows, agreement.tables(rows), {}, out, as_json)
        agreement.refuse_nothing(rows, sources)
    elif kind == "constraint":
        from tacg.bench import constraint

        count = 40 if quick else trials
        made = constraint.measure(model, count, requests, problems, seed=seed, only=only, quick=quick)
        rows = _collect(made, 3 if quick else 16, out)
        present("Structured answers", rows, constraint.tables(rows), {}, out, as_json)
    elif kind == "quantize":
        from tacg.bench import quantize
        from tacg.files import write_file
        from tacg.records.flat import read_rows

        if only and only not in quantize.PARTS:
            raise unknown("part", only, quantize.PARTS)
        n, size, width = (2, 0.02, 128) if quick else (100, gigabytes, 2048)
        parts = (only,) if only else quantize.PARTS
        made = quantize.measure(partial(load_model, model), n, size, width, parts)
        rows = _collect(made, 9, out)
        write_file(out / "report.md", quantize.report(read_rows(out / "rows.jsonl")))
        present("Smaller weights", rows, quantize.tables(rows), {}, out, as_json)


def _refuse_unused(kind: str, loading: dict[str, bool], decoding: dict[str, bool]) -> None:
    """Raise for an option without effect: not every benchmark loads a model, and most have fixed settings."""
    given = {**({} if kind in LOADING else loading), **({} if kind == "decode" else decoding)}
    unused = [each for each, is_given in given.items() if is_given]
    if unused:
        raise TacgError(f"`tacg bench {kind}` does not use {', '.join(unused)}: leave it out.")


def _decodes(llm: LLM, settings: dict[str, Any], quick: bool, device: str) -> Iterator[ResultRow]:
    """The built-in model by batch size and against the plain loop; a larger random one against its matrix products."""
    from tacg.bench import decode
    from tacg.engine.request import Decode
    from tacg.tasks import get_task

    task, model = get_task("pocket-math"), llm.model.spec.name
    prompts = [tuple(llm.encode(problem.prompt)) for problem in task.problems("dev", 4 if quick else 64)]
    lengths = Decode().replace(**{**task.decode, "early_stop": False, **settings})
    yield from decode.measure(llm.model, prompts, model, (2,) if quick else decode.BATCHES, lengths)
    yield from decode.between_forwards(llm.model, prompts[0], model, lengths, 2 if quick else 12)
    yield decode.against_plain(llm.model, prompts[0], model, lengths)
    for batch in (2,) if quick else decode.LIMITS:
        yield decode.near_the_limit(batch, quick=quick, device=device)


def _collect(made: Iterable[ResultRow], total: int, out: Path) -> list[ResultRow]:
    """The rows, with a progress bar; each is written as soon as it is measured."""
    from rich.console import Console
    from rich.progress import track

    from tacg.records.rows import write_rows

    rows: list[dict[str, Any]] = []
    for row in track(made, "measuring", total=total, console=Console(stderr=True), transient=True):
        write_rows(out / "rows.jsonl", [row])
        rows.append(row)
    return rows


def _lengths(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise TacgError(f"`--prompts` must be whole numbers separated by commas, got {text!r}.") from None
