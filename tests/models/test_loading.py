"""Checkpoints: what loads, and one clear sentence for each way in which one can be broken."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tacg
from tacg.models.tiny import write_checkpoint
from tacg.text import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def edit(directory: Path, **fields: Any) -> None:
    config = json.loads((directory / "config.json").read_text())
    config = {key: value for key, value in (config | fields).items() if value != "gone"}
    (directory / "config.json").write_text(json.dumps(config))


def reweigh(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors")


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def index(directory: Path, file: str) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": file}}))


def header(directory: Path, tensors: dict[str, Any]) -> None:
    """Weights whose header lies."""
    told = json.dumps(tensors).encode()
    (directory / "model.safetensors").write_bytes(len(told).to_bytes(8, "little") + told + bytes(4))


SIZES = ("d_model", "n_heads", "n_kv_heads", "mlp_hidden_size", "vocab_size", "embedding_size", "max_sequence_length")


@pytest.fixture
def no_hang() -> Iterator[None]:
    """Opening a pipe waits forever; a test that does so must fail."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(120)
    yield
    signal.alarm(0)


def circle(file: Path) -> None:
    file.symlink_to(file.with_name("other"))
    file.with_name("other").symlink_to(file)


FILES = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"),
    *("model.safetensors.index.json", "generation_config.json"),
)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes, devices and links are Unix's")
@pytest.mark.usefixtures("no_hang")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("put", "told"),
    [
        (os.mkfifo, "must be a regular file, but it is a pipe"),
        (os.mkdir, "must be a regular file, but it is a directory"),
        (lambda file: file.symlink_to("/dev/zero"), "must be a regular file, but it is a device"),
        (lambda file: file.symlink_to("nowhere"), "cannot be read: No such file or directory. Download it again"),
        (circle, "cannot be read: Too many levels of symbolic links"),
    ],
    ids=["pipe", "directory", "device", "dangling link", "circle of links"],
)
def test_what_is_no_file_is_named(checkpoint: Path, name: str, put: Callable[[Path], object], told: str) -> None:
    edit(checkpoint, eos_token_id=None)  # so that generation_config.json is asked
    (checkpoint / name).unlink(missing_ok=True)
    put(checkpoint / name)
    with pytest.raises(tacg.TacgError, match=f"{name}'? {told}"):
        tacg.load(checkpoint)


def test_dtypes_are_named_as_torch_names_them_or_found(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(dtype: Any) -> str:
        return tacg.load(checkpoint, dtype=dtype, device="cpu").identity["dtype"]

    assert loaded(torch.bfloat16) == loaded("torch.bfloat16") == loaded("bfloat16") == "bfloat16"
    assert loaded("auto") == "float32"
    weights = load_file(checkpoint / "model.safetensors")
    for kind in (torch.bfloat16, torch.float16):
        save_file({name: weight.to(kind) for name, weight in weights.items()}, checkpoint / "model.safetensors")
        for able in (True, False):
            monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda able=able: able, raising=False)
            monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
            assert loaded("auto") == ("bfloat16" if able and kind == torch.bfloat16 else "float32")
    for wrong in (torch.int8, "int8", float, None, 32):
        with pytest.raises(tacg.TacgError, match=r"Unknown dtype .* Available: auto, bfloat16, float16, float32"):
            loaded(wrong)


def test_devices_are_found_or_refused(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert (
        tacg.load(checkpoint, device="auto").model.device
        == tacg.load(checkpoint, device=torch.device("cpu")).model.device
    )
    for device in ("meta", torch.device("meta")):
        with pytest.raises(tacg.TacgError, match="'meta' cannot be used here: its tensors have no values"):
            tacg.load(checkpoint, device=device)
    for device in (None, 3, ["cpu"], b"cpu"):
        with pytest.raises(tacg.TacgError, match="`device` must be a name such as"):
            tacg.load(checkpoint, device=device)  # type: ignore[arg-type]
    for device in ("", "cpu:x", "cuda:-1", "xla", "hpu", "ipu", "privateuseone"):
        with pytest.raises(tacg.TacgError, match="cannot be used here"):
            tacg.load(checkpoint, device=device)


def test_shards_load_like_one_file(checkpoint: Path) -> None:
    whole = tacg.load(checkpoint)
    weights = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    names, place = sorted(weights), {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-0000{number + 1}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, checkpoint / file)
        place |= dict.fromkeys(part, file)
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    ids = torch.arange(6, 36)[None]
    assert torch.equal(tacg.load(checkpoint).logits(ids), whole.logits(ids))
    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(tacg.TacgError, match=r"model-00002-of-00002.safetensors"):
        tacg.load(checkpoint)


def test_special_ids_come_from_the_files(checkpoint: Path) -> None:
    spec = tacg.load(checkpoint).model.spec
    assert (spec.mask_id, spec.eos_ids) == (1, (0, 5)), "end of text and end of turn"
    assert spec.unwritable == (1,)
    edit(checkpoint, mask_token_id=None, eos_token_id=None)
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": [0, 7]}')
    spec = tacg.load(checkpoint).model.spec
    assert (spec.mask_id, spec.eos_ids) == (1, (0, 5, 7))


def test_rows_of_the_table_that_no_token_owns_are_never_written(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, embedding_size=128)
    llm = tacg.load(directory)
    owned = len(llm.tokenizer.owned_ids())
    assert llm.model.spec.unwritable == (1, *range(owned, 128))
    reweigh(directory, lambda weights: weights["model.transformer.ff_out.weight"][owned:].mul_(9))
    output = tacg.load(directory).generate("Hi", temperature=2.0, gen_length=60, early_stop=False)
    assert max(output.tokens) < owned


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: edit(d, model_type="gpt2"), "model_type 'gpt2' is not supported. Supported: llada"),
        (lambda d: edit(d, alibi=True), "`alibi` must be False for model_type 'llada', got True"),
        (lambda d: edit(d, d_model="gone"), "`d_model` is missing"),
        (lambda d: edit(d, d_model="wide"), "must be a whole number"),
        (lambda d: edit(d, n_heads=5), "`d_model` must be an even multiple of `n_heads`, got 64 and 5"),
        (lambda d: edit(d, n_kv_heads=3), "multiple of `n_kv_heads`"),
        (lambda d: edit(d, n_layers=0), "must be a whole number from 1 to 1000"),
        (lambda d: edit(d, n_layers=3), "9 tensor.s. missing .* first 'model.transformer.blocks.2"),
        (lambda d: edit(d, n_layers=1), "blocks.1.attn_norm.weight' is an unexpected tensor"),
        (lambda d: edit(d, mlp_hidden_size=100), r"ff_out.weight' must have shape \(64, 100\), got \(64, 192\)"),
        (lambda d: edit(d, mask_token_id=4096), "`mask_token_id` must be a token id below 102, got 4096"),
        (lambda d: edit(d, eos_token_id=[]), r"`eos_token_id` must be a token id below 102, got \[\]"),
        (lambda d: (d / "config.json").write_text("{"), "config.json is not valid JSON"),
        (lambda d: (d / "config.json").write_text("[]"), "must hold a JSON object, got list"),
        (lambda d: (d / "config.json").unlink(), "config.json does not exist"),
        (lambda d: (d / "config.json").write_text('{"a": ' * 99999), "config.json is nested more than 64 levels"),
        (lambda d: (d / "config.json").write_text('{"d_model": ' + "9" * 5000 + "}"), "config.json is not valid JSON"),
        (lambda d: (d / "config.json").write_bytes(b"\xff{}"), "config.json' is not a text in UTF-8"),
        (lambda d: edit(d, **dict.fromkeys(SIZES, 1 << 22)), "must be a whole number from 1 to"),
        (lambda d: (d / "tokenizer.json").write_text('{"a": ' * 99999), "is not a tokenizer that can be read"),
        (lambda d: (d / "model.safetensors.index.json").write_text("[" * 99999), "is nested more than 64 levels"),
        (lambda d: index(d, "x" * 5000), "listed in model.safetensors.index.json but does not exist"),
        (lambda d: index(d, "a\0b"), "cannot be read: embedded null"),
        (lambda d: index(d, "."), "it is a directory|does not exist"),
        (lambda d: header(d, {"x": {"dtype": "F32", "shape": [1 << 40] * 2, "data_offsets": [0, 4]}}), "safetensors"),
        (lambda d: header(d, {"x": {"dtype": "F32", "shape": [1 << 70], "data_offsets": [0, 4]}}), "safetensors"),
        (lambda d: header(d, {"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}), "safetensors"),
        (lambda d: header(d, {"x": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}), "safetensors"),
        (lambda d: (d / "model.safetensors").write_bytes(b"\xff" * 8 + b"{}"), "safetensors"),
        (lambda d: (d / "model.safetensors").write_bytes(b""), "safetensors"),
        (lambda d: (d / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda d: (d / "tokenizer.json").write_text("{}"), "is not a tokenizer that can be read"),
        (lambda d: (d / "model.safetensors").unlink(), r"has no \*.safetensors file"),
        (lambda d: truncate(d / "model.safetensors"), "cannot be read as safetensors"),
        (lambda d: (d / "model.safetensors.index.json").write_text("{}"), "must hold a `weight_map`"),
        (lambda d: reweigh(d, lambda w: w.pop("model.transformer.ln_f.weight")), "1 tensor.s. missing"),
    ],
)  # fmt: skip
def test_broken_checkpoints_are_explained(checkpoint: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(checkpoint)
    with pytest.raises(tacg.TacgError, match=message):
        tacg.load(checkpoint)


def test_pickles_are_refused(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "spare")
    (checkpoint / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(tacg.TacgError, match=r"pytorch_model.bin is a pickle, which can run code"):
        tacg.load(checkpoint)


@pytest.mark.parametrize(
    ("source", "message"),
    [("no-such-model", "No checkpoint at 'no-such-model'"), ("./nowhere/at/all", "No checkpoint at")],
)
def test_unknown_places(source: str, message: str) -> None:
    with pytest.raises(tacg.TacgError, match=message):
        tacg.load(source)


def test_a_file_is_not_a_checkpoint(checkpoint: Path) -> None:
    with pytest.raises(tacg.TacgError, match="is a file; a checkpoint is a directory"):
        tacg.load(checkpoint / "config.json")
    for device in ("cuda:99", "abacus"):
        with pytest.raises(tacg.TacgError, match=f"device '{device}' cannot be used here"):
            tacg.load(checkpoint, device=device)
    with pytest.raises(tacg.TacgError, match=r"Unknown dtype 'float23'. Did you mean 'float32'"):
        tacg.load(checkpoint, dtype="float23")


def test_an_unreachable_hub_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(tacg.TacgError, match="'nobody/nothing-at-all' could not be downloaded"):
        tacg.load("nobody/nothing-at-all")


def test_a_tokenizer_of_vocabulary_and_merges(checkpoint: Path) -> None:
    """Dream comes without tokenizer.json: byte pairs, cut as Qwen2 cuts, special tokens from the other file."""
    from tokenizers import pre_tokenizers

    (checkpoint / "tokenizer.json").unlink()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("H", "i"), ("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e"), ("r", "e")]
    vocabulary = {token: number for number, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    (checkpoint / "vocab.json").write_text(json.dumps(vocabulary))
    (checkpoint / "merges.txt").write_text("#version: 0.2\n" + "\n".join(f"{a} {b}" for a, b in merges))
    size = len(vocabulary)
    added = {str(size): {"content": "<|endoftext|>", "special": True}, str(size + 1): {"content": "<|mask|>"}}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    tokenizer = Tokenizer(checkpoint)
    ids = tokenizer.encode("Hi there 42<|mask|>")
    assert [tokenizer.id_of("Hi"), tokenizer.id_of("Ġthe"), tokenizer.id_of("re")] == ids[:3]
    assert ids[-1] == size + 1
    assert ids[4:6] == [tokenizer.id_of("4"), tokenizer.id_of("2")], "digits one by one"
    assert tokenizer.decode(ids) == "Hi there 42"
    for text in ("zażółć\n\n gęślą", "  don't  ", "x = [1,2]\r\n"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    added[str(size + 7)] = {"content": "<|gap|>"}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    with pytest.raises(tacg.TacgError, match="must get id"):
        Tokenizer(checkpoint)


def test_loading_tells_how_far_it_is(checkpoint: Path) -> None:
    told: list[tuple[int, int]] = []
    tacg.load(checkpoint, tell=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 0


def test_offline_and_unknown_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(tacg.TacgError, match="is not in the local cache"):
        tacg.load("nobody/nothing", offline=True)
