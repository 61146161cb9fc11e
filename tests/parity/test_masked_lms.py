"""BERT, RoBERTa, ALBERT and ModernBERT against `transformers`: checkpoints that it saved, texts that it tokenized."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tacg
from tacg.models.base import Span, whole
from tacg.text import Tokenizer
from tests.cli.test_cli import tacg as run

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,!é中", "##s", "##ing"]
WORDS += [f"word{number}" for number in range(60)]
SIZE = len(WORDS)
COMMON = {"vocab_size": SIZE, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
SMALL = COMMON | {"intermediate_size": 96, "max_position_embeddings": 80}
LIVELY = {"initializer_range": 0.2}  # random weights large enough for every part to matter
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", SMALL | LIVELY),
    "bert, tanh": ("Bert", SMALL | LIVELY | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5}),
    "roberta": ("Roberta", SMALL | LIVELY | {"pad_token_id": 0, "type_vocab_size": 1}),
    "roberta, padding 1": ("Roberta", SMALL | LIVELY | {"pad_token_id": 1, "layer_norm_eps": 1e-5}),
    "albert": ("Albert", SMALL | LIVELY | {"embedding_size": 32}),
    "albert, groups": (
        "Albert",
        SMALL | LIVELY | {"embedding_size": 64, "num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
    "modernbert": ("ModernBert", SMALL | LIVELY | {"local_attention": 16, "pad_token_id": 0}),
    "modernbert, biases": (
        "ModernBert",
        SMALL | LIVELY | {"local_attention": 64, "pad_token_id": 0, "num_hidden_layers": 4, "norm_bias": True}
        | {"attention_bias": True, "mlp_bias": True, "classifier_bias": True, "global_attn_every_n_layers": 2},
    ),
}  # fmt: skip


def theirs(kind: str, shape: dict[str, Any], seed: int = 0) -> torch.nn.Module:
    config = getattr(transformers, f"{kind}Config")(**shape)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind}ForMaskedLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # norms and biases begin as ones and zeros, which hides where they belong
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


def write_words(directory: Path) -> None:
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")


@pytest.fixture(params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[torch.nn.Module, tacg.LLM]:
    model = theirs(*FAMILIES[request.param])
    model.save_pretrained(tmp_path)
    write_words(tmp_path)
    return model, tacg.load(tmp_path)


def test_logits_are_theirs(pair: tuple[torch.nn.Module, tacg.LLM]) -> None:
    model, llm = pair
    ids = torch.randint(6, SIZE, (3, 61), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(input_ids=ids).logits
    ours = llm.logits(ids)
    assert float((ours - expected).abs().max()) <= 1e-5
    assert float(ours.std()) > 0.1, "nothing is hidden by small numbers"
    assert float((llm.logits(ids.flip(1)).flip(1) - ours).abs().max()) > 1e-2, "places matter"


def test_padding_changes_nothing(pair: tuple[torch.nn.Module, tacg.LLM]) -> None:
    """They pad on the right and mask the padding; here rows lie end to end, and none influences its neighbours."""
    model, llm = pair
    ids = torch.randint(6, SIZE, (5, 61), generator=torch.Generator().manual_seed(2))
    valid = torch.arange(61) < torch.tensor([61, 9, 17, 1, 40])[:, None]
    padding = 0 if model.config.pad_token_id is None else model.config.pad_token_id
    with torch.no_grad():
        expected = model(input_ids=ids.where(valid, padding), attention_mask=valid.long()).logits
    ours = llm.logits(ids, valid)
    assert float((ours - expected)[valid].abs().max()) <= 1e-5
    for row, mask in enumerate(valid):
        assert torch.equal(llm.logits(ids[row : row + 1, mask])[0], ours[row, mask])


def test_spans_behind_a_cache_see_what_is_before(pair: tuple[torch.nn.Module, tacg.LLM]) -> None:
    """If nothing has changed, the second half alone gives what the whole row gave there."""
    from tacg.cache import Cache

    _, llm = pair
    ids, select = torch.randint(6, SIZE, (60,), generator=torch.Generator().manual_seed(3)), torch.arange(60)
    expected, cache = llm.model(ids, whole([60]), select), Cache(60)
    llm.model(ids, [Span(0, 60, 60, cache)], select)
    again = llm.model(ids[30:], [Span(30, 60, 60, cache)], select[:30])
    assert float((again - expected[30:]).abs().max()) <= 1e-5


def test_a_memory_of_hidden_states_decides_the_same(pair: tuple[torch.nn.Module, tacg.LLM]) -> None:
    _, llm = pair
    found = {
        memory: llm.fill("abc⟨9⟩word1 word2⟨7⟩.", "tacg", memory=memory, block_length=64, threshold=0.3)
        for memory in ("fp32", "hidden")
    }
    assert [(c.position, c.token, c.step) for c in found["fp32"].commits] == [
        (c.position, c.token, c.step) for c in found["hidden"].commits
    ]


def test_special_tokens_stand_around_a_text_and_are_never_written(pair: tuple[torch.nn.Module, tacg.LLM]) -> None:
    _, llm = pair
    spec = llm.model.spec
    assert (spec.before, spec.after, spec.mask_id, spec.eos_ids) == ((3,), (4,), 5, ())
    assert spec.unwritable == tuple(range(6))
    assert spec.max_length == 80 - (llm.model.config.first if hasattr(llm.model.config, "first") else 0)
    for asked in ("abc⟨12⟩ def", tacg.Canvas((tacg.Hole(12),))):
        out = llm.fill(asked, "confidence", temperature=5.0, block_length=4)
        assert {commit.token for commit in out.commits}.isdisjoint(range(6))
    framed = [3, 6, 5, 5, 7, 4]
    assert llm.fill(framed).text == llm.fill(framed[1:-1]).text, "a frame that is there is not put around again"
    out = llm.generate("abc", "confidence", gen_length=5)
    assert len(out.commits) == 5
    with pytest.raises(tacg.TacgError, match="must fit"):
        llm.fill("a⟨79⟩")


@pytest.mark.parametrize("lower", [True, False])
def test_word_pieces_are_theirs(tmp_path: Path, lower: bool) -> None:
    write_words(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    ours = Tokenizer(tmp_path)
    other = transformers.BertTokenizer(vocab={word: n for n, word in enumerate(WORDS)}, do_lower_case=lower)
    for text in ("Words, words word1s!", "wording  as\tit é中a.", "[MASK]a [unused1]", "É Word3 xyzzys", ""):
        assert ours.encode(text) == other.encode(text, add_special_tokens=False)
        assert [*ours.frame()[0], *ours.encode(text), *ours.frame()[1]] == other.encode(text)
    assert ours.decode(ours.encode("word1s, a word2")) == "word1s , a word2".replace(" ,", ",")


def test_byte_pairs_of_roberta_are_theirs(tmp_path: Path) -> None:
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary = {token: n for n, token in enumerate([*specials, *"abcdeĠ'st", "ab", "Ġa", "Ġab", "'s"])}
    merges = ["a b", "Ġ a", "Ġ ab", "' s"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    ours = Tokenizer(tmp_path)
    pairs = [tuple(each.split()) for each in merges]
    mask = transformers.AddedToken("<mask>", lstrip=True)  # as in the tokenizer.json that its authors published
    other = transformers.RobertaTokenizer(vocab=vocabulary, merges=pairs, mask_token=mask)
    for text in ("ab abc's  ab", "a <mask> b", "st'd"):
        assert [0, *ours.encode(text), 2] == other.encode(text)
    assert ours.special_ids() == {0, 1, 2, 3, 4}


def test_old_names_and_other_heads_are_understood(tmp_path: Path) -> None:
    """As the first BERT was saved: gamma and beta, heads for other tasks, the tied table a second time."""
    model = theirs("Bert", SMALL | LIVELY)
    model.save_pretrained(tmp_path)
    write_words(tmp_path)
    ids = torch.randint(6, SIZE, (1, 20), generator=torch.Generator().manual_seed(1))
    expected = tacg.load(tmp_path).logits(ids)
    weights = load_file(tmp_path / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in weights.items()
    }
    old |= {"cls.seq_relationship.weight": torch.zeros(2, 64), "bert.pooler.dense.bias": torch.zeros(64)}
    old |= {"bert.embeddings.position_ids": torch.arange(80)[None], "cls.predictions.decoder.weight": torch.zeros(1)}
    save_file(old, tmp_path / "model.safetensors")
    assert torch.equal(tacg.load(tmp_path).logits(ids), expected)


@pytest.mark.parametrize(
    ("kind", "field", "value", "told"),
    [
        ("Bert", "hidden_act", "mish", "`hidden_act` must be one of gelu"),
        ("Bert", "position_embedding_type", "relative_key", "`position_embedding_type` must be 'absolute'"),
        ("Bert", "tie_word_embeddings", False, "`tie_word_embeddings` must be True"),
        ("Roberta", "max_position_embeddings", 2, "`max_position_embeddings` must be a whole number from 18"),
        ("Albert", "num_hidden_groups", 9, "`num_hidden_groups` must be a whole number from 1 to 3"),
        ("ModernBert", "layer_types", ["full_attention"], "`layer_types` must name one of full_attention"),
    ],
)
def test_other_networks_are_refused(tmp_path: Path, kind: str, field: str, value: Any, told: str) -> None:
    theirs(kind, SMALL | ({"pad_token_id": 1} if kind in ("Roberta", "ModernBert") else {})).save_pretrained(tmp_path)
    write_words(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {field: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(tacg.TacgError, match=told):
        tacg.load(tmp_path)


@pytest.mark.parametrize("missing", ["[CLS]", "[UNK]", "[MASK]"])
def test_a_vocabulary_without_special_tokens_is_refused(tmp_path: Path, missing: str) -> None:
    theirs("Bert", SMALL).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(word for word in WORDS if word != missing))
    with pytest.raises(tacg.TacgError, match=rf"vocab.txt is not a .* must have the token \{missing[:-1]}"):
        tacg.load(tmp_path)


def test_tokens_beyond_the_table_are_nobodys(tmp_path: Path) -> None:
    """A tokenizer may have more special tokens than the model has rows."""
    theirs("Bert", SMALL | {"vocab_size": SIZE - 2}).save_pretrained(tmp_path)
    words = [*WORDS[:-2], "[unused98]", "[unused99]"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    llm = tacg.load(tmp_path)
    assert max(llm.model.spec.unwritable) < SIZE - 2
    assert len(llm.fill("a⟨3⟩b").commits) == 3


def test_what_asks_prompts_refuses_them(tmp_path: Path) -> None:
    theirs("Bert", SMALL).save_pretrained(tmp_path)
    write_words(tmp_path)
    done = run("serve", "--model", str(tmp_path), "--port", "0")
    assert done.returncode == 2
    assert "tacg serve needs a model that answers prompts" in done.stderr
