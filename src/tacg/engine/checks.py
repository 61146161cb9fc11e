"""Checks of requests that ask for more than a plain decode: constraints, canvases, branches, a verifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacg.errors import TacgError

if TYPE_CHECKING:
    from tacg.engine.request import Request
    from tacg.models.base import Denoiser, ModelSpec


def check_branches(request: Request) -> None:
    """Raise if branches are not possible with this request's settings."""
    if request.decode.memory == "hidden":
        raise TacgError('`memory` must be fp32 or bf16 for a policy that looks ahead, got "hidden".')


def check_constraint(request: Request) -> None:
    """Raise if a constraint is not possible with this request's settings."""
    if request.decode.memory == "hidden":
        raise TacgError('`memory` must be fp32 or bf16 with a schema, regex or choices, got "hidden".')


def check_canvas(request: Request, spec: ModelSpec) -> None:
    """Raise if the canvas has no mask, or not `gen_length` positions."""
    canvas, length = request.canvas, request.decode.gen_length
    if len(canvas) != length or spec.mask_id not in canvas:
        raise TacgError(
            f"A canvas must have `gen_length` positions, {length}, and a mask among them; got "
            f"{len(canvas)} positions, {canvas.count(spec.mask_id)} of them masks."
        )


def check_steps(request: Request, spec: ModelSpec, steps: int) -> None:
    """Raise if there are fewer steps than blocks with masks."""
    holes = request.holes(spec.mask_id)
    blocks = sum(any(holes[start:stop]) for start, stop, _ in request.blocks(spec))
    if blocks > steps:
        raise TacgError(f"`steps` must be at least the number of blocks, {blocks}, got {steps}.")


def check_shown(request: Request, model: Denoiser) -> None:
    """Raise if the request needs hidden states or attention that the model does not expose."""
    name = model.spec.name
    if request.decode.memory == "hidden" and not hasattr(model, "hidden"):
        raise TacgError(f'`memory` "hidden" needs a model that exposes its hidden states, {name!r} does not: use fp32.')
    if request.policy.needs.attention and not getattr(model, "shows_attention", False):
        raise TacgError(
            f"`{request.policy.name}` reads attention, which {name!r} does not expose: "
            "use another policy, or a model loaded by `tacg.load`."
        )


def check_verifier(request: Request, verifier: Denoiser | None) -> None:
    """Raise if the policy's verifier is missing, or too short for the request."""
    if verifier is None:
        raise TacgError(
            f"`{request.policy.name}` needs a verifier, an autoregressive model with the same tokenizer: "
            "tacg.load(model, verifier=DIRECTORY), or --verifier DIRECTORY."
        )
    length, spec = len(request.prompt) + request.decode.gen_length, verifier.spec
    if length > spec.max_length:
        raise TacgError(
            f"Prompt and answer must fit {spec.max_length} positions of the verifier {spec.name!r}, got {length}; "
            "shorten the prompt or `gen_length`."
        )
