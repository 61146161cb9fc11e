"""The recipe of the built-in model, in miniature: it trains, survives a kill, resumes exactly, and exports."""

from __future__ import annotations

import ast
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

import tacg
from tacg.models.base import whole as spans
from tacg.models.loading import locate

RECIPE = Path(__file__).parents[2] / "recipes" / "pocket"
SMALL = ["--shard-samples", "48", "--tokens-per-batch", "1024", "--save-every", "2", "--opening-shards", "1"]
SMALL += ["--shape", json.dumps({"d_model": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "mlp_hidden_size": 64})]


def command(run: Path, steps: int) -> list[str]:
    return [sys.executable, str(RECIPE / "train.py"), "--run", str(run), "--steps", str(steps), *SMALL]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twelve steps without interruption; it crosses from one shard into the next."""
    run = tmp_path_factory.mktemp("whole")
    subprocess.run(command(run, 12), check=True, timeout=300, capture_output=True)
    assert len(json.loads((run / "shards.json").read_text())) > 1
    return run


def test_a_killed_run_resumes_as_if_nothing_had_happened(whole: Path, tmp_path: Path) -> None:
    child = subprocess.Popen(command(tmp_path, 12), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    checkpoint = tmp_path / "checkpoint.safetensors"
    for _ in range(3000):
        if checkpoint.exists():
            break
        time.sleep(0.1)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    done = subprocess.run(command(tmp_path, 12), check=True, timeout=300, capture_output=True, text=True)
    assert "resumed at step" in done.stdout
    ours, theirs = load_file(checkpoint), load_file(whole / "checkpoint.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.allclose(ours[name], tensor, atol=1e-5), name


def test_two_processes_train_as_one(whole: Path, tmp_path: Path) -> None:
    """Each has half of every batch; sums are taken in another order."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--"]
    subprocess.run([*launch, *command(tmp_path, 12)[1:]], check=True, timeout=300, capture_output=True)
    ours, theirs = (json.loads((run / "loss.jsonl").read_text()) for run in (tmp_path, whole))
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    weights, others = (load_file(run / "checkpoint.safetensors") for run in (tmp_path, whole))
    assert all(torch.allclose(weights[name], other, atol=5e-3) for name, other in others.items() if "model/" in name)


@pytest.mark.parametrize("weighting", ["eq1", "plain"])
def test_the_parts_of_the_loss_sum_to_the_whole(
    weighting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(RECIPE)
    train, data = (importlib.import_module(name) for name in ("train", "data"))
    shape = train.SHAPE | json.loads(SMALL[SMALL.index("--shape") + 1])
    trainer = train.Trainer(tmp_path, train.Plan(steps=12, weighting=weighting), shape)
    batch = data.shard(trainer.tokenizer, 0, 10, 10**6, data.OPENING)[0]

    monkeypatch.setattr(train, "PIECE", 700)

    def gradients(part: int, parts: int) -> list[torch.Tensor]:
        monkeypatch.setenv("RANK", str(part))
        monkeypatch.setenv("WORLD_SIZE", str(parts))
        trainer.parts = train.Parts()
        trainer.model.zero_grad()
        loss = trainer.backward(batch)
        return [loss, *(each.grad.clone() for each in trainer.model.parameters() if each.grad is not None)]

    thirds = [gradients(part, 3) for part in range(3)]
    for one, *three in zip(gradients(0, 1), *thirds, strict=True):
        assert torch.allclose(one, sum(three), atol=2e-2 * float(one.abs().max()))


def test_the_fast_network_is_the_package_s(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same logits and gradients in float32, for rows of several lengths."""
    monkeypatch.syspath_prepend(RECIPE)
    train, fast = (importlib.import_module(name) for name in ("train", "fast"))
    monkeypatch.setattr(fast, "FAST", torch.float32)
    shape = train.SHAPE | json.loads(SMALL[SMALL.index("--shape") + 1])
    model = train.Trainer(whole, train.Plan(steps=12), shape).model
    lengths, select = [5, 5, 9, 7], torch.tensor([0, 3, 11, 25])
    tokens = torch.randint(model.config.table_size, (sum(lengths),))
    results = []
    for forward in (
        lambda: fast.logits(model, tokens, lengths, select), lambda: model(tokens, spans(lengths), select),
    ):  # fmt: skip
        logits = forward()
        loss = torch.logsumexp(logits, 1).sum()
        results.append([logits.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4 * float(theirs.abs().max()) + 1e-7)


@pytest.mark.parametrize("name", ["sums", "free-math", "free-code"])
def test_what_is_hard_is_practised_by_itself(name: str, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else is given, so that every masked token is a result, or a name."""
    monkeypatch.syspath_prepend(RECIPE)
    data = importlib.import_module("data")
    tokenizer = Tokenizer.from_file(str(whole / "tokenizer.json"))
    focus = data.NAMED if name == "free-code" else data.RESULTS
    batch = data.shard(tokenizer, 40, 20, 10**6, [(name, {}, focus, 1.0)])[0]
    masked = batch.answer.nonzero().squeeze(1).tolist()
    assert len(batch.lengths) == 20
    assert len(masked) > 20 * 6
    words = [tokenizer.id_to_token(int(token)).strip("Ġ") for token in batch.tokens]
    if name == "free-code":
        assert {words[place] for place in masked} <= data.VARIABLES
    else:
        assert all(words[place].isdigit() for place in masked)
        amounts = {"plus", "minus", "buys", "finds", "wins", "gives", "loses", "sells"}
        assert not amounts & {words[place - 1] for place in masked}


def test_words_start_alike(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without a space; a name like its number, and like the names of its series."""
    monkeypatch.syspath_prepend(RECIPE)
    train = importlib.import_module("train")
    tokenizer = Tokenizer.from_file(str(whole / "tokenizer.json"))
    table, head = (torch.randn(tokenizer.get_vocab_size(), 160) for _ in range(2))
    train.teach_words(tokenizer, table, head)
    word = {name: table[tokenizer.token_to_id(name)] for name in ("third", "Ġthird", "Ġ3", "Ġ4", "fifth", "five")}
    near = {name: float(torch.cosine_similarity(word["third"], each, dim=0)) for name, each in word.items()}
    assert near["Ġthird"] == pytest.approx(1)
    assert near["Ġ3"] > near["Ġ4"]
    assert near["fifth"] > near["five"]


def test_a_verifier_is_trained_in_a_moment(tmp_path: Path) -> None:
    """A miniature: it learns something, loads, and verifies pocket's drafts."""
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    words = [sys.executable, str(RECIPE / "verifier.py"), "--model", str(locate("pocket")), "--out", str(tmp_path)]
    words += ["--steps", "100", "--shard-samples", "48", "--tokens-per-batch", "512", "--shape", json.dumps(shape)]
    done = subprocess.run(words, check=True, timeout=300, capture_output=True, text=True)
    *steps, quality = map(ast.literal_eval, done.stdout.splitlines())
    assert steps[-1]["loss"] < 5, "ln 609 is 6.4"
    assert all(0 < each["right"] < 1 for each in quality.values())
    assert (tmp_path / "model.safetensors").stat().st_size < 10**6
    output = tacg.load("pocket", verifier=tmp_path).generate("Mia has 23 apples.", "apd", gen_length=16)
    assert output.auxiliary == output.forwards


def test_the_export_is_a_checkpoint_like_any_other(whole: Path, tmp_path: Path) -> None:
    out, ages = tmp_path / "model", tmp_path / "ages"
    words = [sys.executable, str(RECIPE / "export.py"), "--run", str(whole), "--out", str(out), "--ages", str(ages)]
    subprocess.run(words, check=True, timeout=120, capture_output=True)
    assert sorted(path.name for path in ages.iterdir()) == [f"model-age-{number}" for number in range(1, 6)]
    young, old, newest = (
        load_file(path / "model.safetensors") for path in (ages / "model-age-1", ages / "model-age-5", out)
    )
    assert all(torch.equal(old[name], tensor) for name, tensor in newest.items())
    assert not any(torch.equal(young[name], old[name]) for name in old if name.endswith("proj.weight"))
    assert (
        len(tacg.load(ages / "model-age-1").generate("Mia has 23 apples.", gen_length=8, early_stop=False).tokens) == 8
    )
    llm = tacg.load(out)
    text = "Mia has 23 apples. She buys 8 more.\nfor n in data: # żółw\n    5 . 4"
    assert llm.tokenizer.decode(llm.tokenizer.encode(text)) == text
    assert len(llm.tokenizer.encode(" 37")) == 1
    output = llm.generate("Mia has 23 apples.", gen_length=16, early_stop=False)
    assert len(output.tokens) == 16
    assert llm.model.spec.mask_id not in output.tokens


def test_rows_and_card_say_what_it_can_do(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(RECIPE)
    export, measure = (importlib.import_module(name) for name in ("export", "measure"))
    export.export(whole, tmp_path)
    rows = measure.measure(tmp_path, 2, 0, brief=True)
    measure.write_card(tmp_path, rows)
    assert {(row["n"], row["age"]) for row in rows} == {(2, 12)}
    assert {row["steps_per_block"] for row in rows if row["decoder"] == "schedule"} == {32}
    card = (tmp_path / "README.md").read_text("utf-8")
    assert all(f"| {task} | 0.0 | " in card for task in ("free-code", "free-math"))
    assert capsys.readouterr().out.count("| schedule |") == 2
    assert measure.measure(tmp_path, 2, 0, brief=True) == rows
    assert "|" not in capsys.readouterr().out, "what is measured is not measured again"


@pytest.mark.parametrize(
    ("accuracy", "steps", "tpf", "within"),
    [(0.7, 9, 3.5, True), (0.9, 9, 3.5, False), (0.6, 9, 3.5, False), (0.7, 7, 3.5, False), (0.7, 20, 1.6, False)],
)
def test_the_regime_is_that_of_real_models(
    accuracy: float, steps: float, tpf: float, within: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(RECIPE)
    measure = importlib.import_module("measure")
    assert measure.within({"accuracy": accuracy}, {"steps_per_block": steps, "tpf": tpf}) is within


def test_the_ideal_model_knows_every_wording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against counting: "a" or "b c", then the same again, then an end; of three tokens at least, in five places."""
    monkeypatch.syspath_prepend(RECIPE)
    ideal = importlib.import_module("ideal")
    first = [("start", "middle", "a", 0.5), ("start", "middle", "b c", 0.5)]
    second = [("middle", "end", " a d", 0.25), ("middle", "end", " b c d", 0.75)]
    model = ideal.Ideal([*first, *second], 6, 3)
    pieces = {piece: number for number, piece in enumerate(model.pieces)}
    start = model.chances(np.full(6, -1))
    assert start[0, pieces["a"]] == pytest.approx(0.5)
    assert start[4, pieces[" d"]] == pytest.approx(0.375)
    seen = np.full(6, -1)
    seen[3] = pieces[" d"]  # "a b c d" or "b c a d"
    after = model.chances(seen)
    assert after[0, pieces["a"]] == pytest.approx(0.375 / 0.5)
    assert after[2, pieces[" a"]] == pytest.approx(0.125 / 0.5)
    assert after[4, 0] == pytest.approx(1)
    assert model.decode(0.9) == ([5], "a b c d"), "padding; a; padding, by then sure; b; the rest"
