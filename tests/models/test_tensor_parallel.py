"""A model over two processes on the CPU against the whole one: logits, and every token of a decode."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tacg.models.tiny import write_checkpoint

PROCESS = """
import json, sys
import torch
from torch import distributed as dist
import tacg
from tacg.errors import TacgError
from tacg.models.tensor_parallel import split_over_processes

place, rank = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{place}/meeting", rank=rank, world_size=2)
ids = torch.arange(60)[None] * 7 % 90 + 6
whole, part = tacg.load(place), tacg.load(place)
try:
    split_over_processes(part.model)
except TacgError as error:
    print(json.dumps({"refused": str(error)}))
else:
    held = [sum(each.numel() for each in llm.model.parameters()) for llm in (whole, part)]
    off = float((whole.logits(ids) - part.logits(ids)).abs().max())
    tokens = [[out.tokens for out in llm.generate(["12 + 7", "a longer one"], "tacg", gen_length=32, cache=cache)]
              for llm in (whole, part) for cache in ("auto", "none")]
    print(json.dumps({"off": off, "held": held, "same": tokens[0] == tokens[2] and tokens[1] == tokens[3],
                      "tokens": tokens[0]}))
dist.destroy_process_group()
"""


def both(place: Path) -> list[dict[str, object]]:
    """The output of the two processes."""
    command = [sys.executable, "-W", "ignore", "-c", PROCESS, str(place)]
    started = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    told = [process.communicate(timeout=240)[0] for process in started]
    return [json.loads(each.splitlines()[-1]) for each in told]


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_two_processes_are_one_model(family: str, tmp_path: Path) -> None:
    first, second = both(write_checkpoint(tmp_path, family=family, liveliness=2.0))
    for told in (first, second):
        assert told["off"] <= 1e-5
        assert told["same"]
        assert told["held"][1] < told["held"][0]
    assert first["tokens"] == second["tokens"]


def test_experts_are_refused(tmp_path: Path) -> None:
    first, _ = both(write_checkpoint(tmp_path, family="llada2"))
    assert "dense families" in str(first["refused"])
