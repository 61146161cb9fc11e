"""Serve a model over HTTP, with an OpenAI-compatible API and a page that shows each decode live."""

from __future__ import annotations

import gc
import logging
from typing import Annotated

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    CacheMode,
    Compiled,
    Device,
    Dtype,
    Graphed,
    Json,
    Model,
    Quantize,
    SettingOptions,
    Verifier,
    load_model,
    parse_settings,
    policy_option,
)
from tacg.cli.interrupt import ended_by_signals
from tacg.cli.shown import print_json
from tacg.errors import TacgError

EPILOG = """[bold]Examples[/bold]

tacg serve                                          at http://127.0.0.1:8000, for this machine only

tacg serve --policy tacg+klass --set gen_length=64  defaults for requests that set nothing else

TACG_API_KEY=… tacg serve --host 0.0.0.0            for other machines, with a key

tacg serve --policy my_file.py:Bold                 clients may then name the policy, too

curl -H 'Content-Type: application/json' http://127.0.0.1:8000/v1/chat/completions -d '{"model": "pocket", "messages":
[{"role": "user", "content": "'"$(tacg tasks pocket-math --bare)"'"}]}'"""


def main(
    model: Model = DEFAULT_MODEL,
    verifier: Verifier = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    quantize: Quantize = None,
    compiled: Compiled = False,
    graphs: Graphed = False,
    port: Annotated[int, typer.Option(help="Port; 0 takes any free port.", min=0, max=65535)] = 8000,
    host: Annotated[str, typer.Option(help="Interface to listen on; anything but loopback needs a key.")] = "127.0.0.1",
    api_key: Annotated[
        str | None, typer.Option("--api-key", envvar="TACG_API_KEY", help="Clients must send it as a bearer token.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow other machines without a key.")] = False,
    policy: Annotated[str, policy_option("Policy for requests that name none.")] = "tacg",
    setting: SettingOptions = None,
    cache: CacheMode = None,
    max_rows: Annotated[int, typer.Option(help="Rows decoded together.", min=1)] = 32,
    queue: Annotated[int, typer.Option(help="Rows that may wait; further requests get 429.", min=0)] = 128,
    max_memory: Annotated[
        float, typer.Option(help="GiB that rows may take (keys, references, logits); 0: what the GPU can spare.", min=0)
    ] = 0.0,
    max_n: Annotated[int, typer.Option(help="Maximum answers per request.", min=1)] = 16,
    max_prompt: Annotated[int, typer.Option(help="Maximum tokens per prompt.", min=1)] = 4096,
    max_length: Annotated[int, typer.Option(help="Maximum positions per answer.", min=1)] = 1024,
    max_body: Annotated[
        int | None, typer.Option(help="Maximum bytes per request, on any route; default: 1 MiB; replays: 16.", min=1)
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds per answer, including waiting.", min=0.1)] = 300.0,
    grace: Annotated[float, typer.Option(help="Seconds to finish running requests at SIGTERM.", min=0)] = 30.0,
    cors: Annotated[
        list[str] | None, typer.Option("--cors", metavar="ORIGIN", help="Allow pages of this site to read answers.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Host name to accept in requests; repeatable."),
    ] = None,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write prompts to the log.")] = False,
    as_json: Json = False,
) -> None:
    """Serve a model; at Ctrl-C or SIGTERM running requests finish. With --json the address is a JSON line."""
    with ended_by_signals():
        try:
            from tacg.serve.app import Service
            from tacg.serve.guard import Access
            from tacg.serve.limits import Limits
            from tacg.serve.parse_request import Defaults
            from tacg.serve.run import Server, address, bind
        except ModuleNotFoundError as error:
            if error.name not in ("starlette", "uvicorn"):
                raise
            raise TacgError(f"`tacg serve` needs {error.name}: pip install 'tacg[serve]'.") from None

        names = {name.lower() for name in allow_host or ()}
        access = Access.bound_to(
            host, api_key, insecure=insecure, also=names, origins=tuple(cors or ()), log_prompts=log_prompts
        )
        limits = Limits(
            rows=max_rows, memory=max_memory, queue=queue, answers=max_n, prompt_tokens=max_prompt,
            gen_length=max_length, deadline=deadline, grace=grace,
            **({} if max_body is None else {"body_bytes": max_body, "replay_bytes": max_body}),
        )  # fmt: skip
        defaults = Defaults(policy, parse_settings(policy, setting, cache))
        llm = load_model(
            model, dtype=dtype, device=device, verifier=verifier, quantize=quantize, compiled=compiled, graphs=graphs
        )
        llm.refuse_fill_only("tacg serve")
        service = Service(llm, limits, access, defaults)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
        listening = bind(host, port)
        where = address(listening)
        if as_json:
            print_json({"address": where, "model": llm.model.spec.name})
        typer.secho(f"{llm.model.spec.name} at {where}  (OpenAI clients: base_url {where}/v1)", err=True)
        gc.collect()
        gc.freeze()  # otherwise each collection rescans all objects, a second per large body
        Server(service).run(sockets=[listening])
    if service.batcher.failure:
        typer.secho(f"error: {service.batcher.failure} The server has ended; start it again.", fg="red", err=True)
        raise typer.Exit(1)
