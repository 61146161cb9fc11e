"""The paper's sets: how they are read, asked and graded. Where the public files are at hand, every item of them."""

from __future__ import annotations

import gzip
import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tacg import TacgError
from tacg.bench.graders import CODE, SETS, answers, measure, measure_styles, style_table
from tacg.bench.number_formats import NO_NUMBER, Format, format_lines, number_formats
from tacg.bench.styles import BODIES, MARKED, STYLES
from tacg.cli.main import app
from tacg.experiments.evaluate import evaluate, settings_of
from tacg.llm import LLM
from tacg.tasks import Problem, Task, benchmark_names, get_task
from tacg.tasks.gsm8k import final_number
from tacg.tasks.humaneval import completed
from tacg.tasks.latex import last_box
from tacg.tasks.math500 import same_by_algebra, same_words
from tacg.tasks.mbpp import between_marks
from tacg.tasks.numbers import whole_number
from tacg.tasks.released import gsm8k_answer, math_equal

PUBLIC = Path(os.environ.get("TACG_SETS", Path(__file__).parents[3] / "shared" / "data"))
public = pytest.mark.skipif(
    not (PUBLIC / SETS["gsm8k"][0]).is_file(), reason="the public sets are not at hand (TACG_SETS)"
)

GSM8K = [
    {"question": "How many is 2 + 3?", "answer": "It is 2+3=<<2+3=5>>5.\n#### 5"},
    {"question": "How many is 600 + 600?", "answer": "It is 1,200.\n#### 1,200"},
    {"question": "How many is 2 - 3?", "answer": "It is -1.\n#### -1"},
]
MATH = [{"problem": "Halve 1.", "solution": r"It is $\boxed{\frac{1}{2}}$."}]
HUMANEVAL = [
    {
        "task_id": "HumanEval/0", "entry_point": "double", "prompt": 'def double(x):\n    """Twice x."""\n',
        "canonical_solution": "    return 2 * x\n",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(0) == 0\n",
    }
]  # fmt: skip
MBPP = [
    {"task_id": 3, "prompt": "Add.", "code": "def add(a):\n    return a + 1", "test_list": ["assert add(1) == 2"]},
    {
        "task_id": 12, "prompt": "Halve.", "code": "def sum(x):\n    return x / 2", "test_imports": ["import math"],
        "test_list": ["assert math.isclose(sum(4), 2)", "assert sum(0) == 0"],
    },
]  # fmt: skip
SAMPLES = {"gsm8k": GSM8K, "math500": MATH, "humaneval": HUMANEVAL, "mbpp": MBPP}


@pytest.fixture
def task(tmp_path: Path) -> Callable[..., Task]:
    """A set of a few items, in a file of its own."""

    def made(name: str, **knobs: Any) -> Task:
        file = tmp_path / f"{name}.json"
        file.write_text("\n".join(json.dumps(item) for item in SAMPLES[name]))
        return get_task(name, data=str(file), **knobs)

    return made


def first(task: Task) -> Problem:
    return next(iter(task.problems()))


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_set_is_lines_or_an_array_and_may_be_gzipped(tmp_path: Path) -> None:
    lines = "\n".join(map(json.dumps, GSM8K)) + "\n\n"
    for name, raw in (("a.jsonl", lines.encode()), ("a.json", json.dumps(GSM8K).encode())):
        (tmp_path / name).write_bytes(raw)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(raw))
        for file in (name, f"{name}.gz"):
            assert [p.id for p in get_task("gsm8k", data=str(tmp_path / file)).problems()] == ["0", "1", "2"]


def test_damaged_sets_are_named(tmp_path: Path) -> None:
    file = tmp_path / "set.json"
    broken: dict[bytes, str] = {
        b"": "must hold JSON objects",
        b"[1]": "must hold JSON objects",
        b'{"question": "?"': r"set.json, line 1 is not valid JSON",
        b'{"question": "?"}': r"gsm8k set: `answer` is missing; this is JSON objects with question; is .*right",
        b'{"question": 5, "answer": "x"}': "Item 0 of the gsm8k set: `question` must be text, got 5",
        b"[" * 100_000: "nested more than 64 levels deep",
        b'{"question": "\\ud800", "answer": "x"}': "half of a surrogate pair",
        b"\xff": "is not a text in UTF-8",
    }
    for number, (raw, told) in enumerate(broken.items()):
        file.write_bytes(raw)
        os.utime(file, (number, number))
        with pytest.raises(TacgError, match=told):
            list(get_task("gsm8k", data=str(file)).problems())
    with pytest.raises(TacgError, match=r"'nowhere\.json' cannot be read: No such file.* Pass the path of the set"):
        list(get_task("gsm8k", data="nowhere.json").problems())


def test_a_sample_is_drawn_from_the_seed(task: Callable[..., Task]) -> None:
    gsm8k = task("gsm8k")
    orders = {tuple(p.id for p in gsm8k.problems(n=2, seed=seed)) for seed in range(8)}
    assert len(orders) > 2
    assert [p.id for p in gsm8k.problems(n=99, seed=5)] == ["0", "1", "2"], "the whole set keeps its order"
    assert [p.id for p in gsm8k.problems(n=1, seed=3)] == [p.id for p in gsm8k.problems(n=2, seed=3)][:1]
    with pytest.raises(TacgError, match="Unknown split of gsm8k 'train'"):
        list(gsm8k.problems("train"))
    with pytest.raises(TacgError, match="`n` must be >= 1"):
        list(gsm8k.problems(n=0))


def test_sets_are_downloaded_only_when_no_file_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(repository: str, configuration: str | None, split: str) -> list[dict[str, Any]]:
        asked.append((repository, configuration, split))
        if configuration == "main":
            raise ConnectionError("no route\nto host")
        return [{**MBPP[1], "task_id": {"test": 12, "prompt": 3, "validation": 600}.get(split, 700)}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert [p.id for p in get_task("mbpp").problems()] == ["12"]
    assert len(list(get_task("mbpp", subset="all").problems())) == 4
    assert {split for _, _, split in asked} == {"test", "prompt", "validation", "train"}
    with pytest.raises(TacgError, match=r"cannot be downloaded: no route\. Pass a file of the set with --data"):
        list(get_task("gsm8k").problems())
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TacgError, match=r"not installed; pip install 'tacg\[bench\]', or pass a file"):
        list(get_task("humaneval").problems())


# --- asking ----------------------------------------------------------------------------------------------------------


def test_prompts_of_the_paper(task: Callable[..., Task]) -> None:
    told = first(task("gsm8k")).asked
    assert isinstance(told, list)
    assert [each["role"] for each in told] == ["system", "user"]
    assert told[0]["content"].endswith("please use the format 'The final answer is'.")
    assert told[1]["content"] == "How many is 2 + 3?"
    assert first(task("math500")).system == first(task("gsm8k")).system
    assert first(task("humaneval")).system == "You complete only Python code."
    assert first(task("mbpp")).asked == (
        "You are an expert Python programmer, and here is your task: Halve. Your code should pass these tests:\n\n"
        "['assert math.isclose(sum(4), 2)', 'assert sum(0) == 0']\n[BEGIN]"
    )


def test_prompts_of_lm_eval(task: Callable[..., Task]) -> None:
    asked = {name: first(task(name, protocol="lm-eval")).asked for name in benchmark_names()}
    assert asked["gsm8k"] == "Question: How many is 2 + 3?\nLet's think step by step\nAnswer:"
    assert asked["math500"] == "Halve 1.\nLet's think step by step, and put your final answer within \\boxed{}."
    assert "passes the tests:\n```python\ndef double(x):" in asked["humaneval"]
    assert "assert math.isclose(sum(4), 2)\nassert sum(0) == 0\n\nPlease enclose" in asked["mbpp"]


def test_worked_examples_come_first_and_never_the_one_asked(task: Callable[..., Task], tmp_path: Path) -> None:
    one, two, _ = (p.prompt for p in task("gsm8k", shots=1).problems())
    assert one == "How many is 600 + 600?\nIt is 1,200.\nThe final answer is 1,200\n\nHow many is 2 + 3?"
    assert two.startswith("How many is 2 + 3?\nIt is 2+3=5.\nThe final answer is 5\n\n")
    assert first(task("mbpp", shots=1)).prompt.count("Add.") == 1, "items outside the test split serve as examples"
    with pytest.raises(TacgError, match="`shots` must be at most 2, the number of worked examples; got 5"):
        first(task("gsm8k", shots=5))
    other = tmp_path / "train.jsonl"
    other.write_text(json.dumps({"question": "Train?", "answer": "#### 7"}))
    assert first(task("gsm8k", shots=1, shots_data=str(other))).prompt.startswith("Train?")


def test_a_preset_has_the_published_lengths(task: Callable[..., Task]) -> None:
    gsm8k = task("gsm8k")
    assert settings_of(gsm8k, "confidence", {})["gen_length"] == 256
    assert settings_of(gsm8k, "tacg:llada2-mini/any", {})["gen_length"] == 1024
    assert settings_of(get_task("pocket-math"), "tacg:llada2-mini/any", {})["gen_length"] == 96


def test_a_set_is_evaluated_like_any_task(task: Callable[..., Task], llm: LLM) -> None:
    """More problems are asked for than there are; the system's words are understood by the template."""
    row = evaluate(llm, task("gsm8k"), "confidence", n=10, settings={"gen_length": 16, "block_length": 16}).row
    assert (row["n"], row["accuracy"], row["accuracy_strict"]) == (3, 0.0, 0.0)


# --- grading ---------------------------------------------------------------------------------------------------------


FORMATS = list(number_formats())


@pytest.mark.parametrize("style", FORMATS, ids=lambda style: f"{style.task}: {style.answer} | {style.question}")
def test_an_answer_means_one_thing_however_it_is_written(style: Format) -> None:
    if style.means != NO_NUMBER:
        assert style.grade(style.means).correct
    assert [wrong for wrong in style.not_these if style.grade(wrong).correct] == []


def test_there_are_a_hundred_formats() -> None:
    assert len({style.answer for style in FORMATS}) >= 100
    assert all(final_number(style.answer) is None for style in FORMATS if style.means == NO_NUMBER)


@given(
    st.integers(-(10**9), 10**9),
    st.sampled_from(
        [
            "The answer is {0}.",
            "The final answer is **${0:,}**.",
            "\\boxed{{{0:,}\\text{{ km}}}}",
            "We have 3 and 5.\n#### {0}",
            "The answer is 2 + 3 = {0} apples",
            "The answer is 99.5 km, so {0:,} km",
            "The answer is 7 red, 9 blue, {0} in total.",
            "It costs {0}",
        ]
    ),
)
def test_whole_numbers_survive_every_frame(number: int, frame: str) -> None:
    assert final_number(frame.format(number)) == number
    assert final_number(frame.replace("{0:,}", "{0}").format(f"{number:,}".replace(",", " "))) == number


@given(st.integers(0, 10**12))
def test_numbers_in_words_are_read_back(number: int) -> None:
    assert final_number(f"The answer is {in_words(number)}.") == number


def in_words(number: int) -> str:
    """A number in English words, by separate code: the reader must not check itself."""
    for size, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand")):
        if number >= size:
            rest = f" {in_words(number % size)}" if number % size else ""
            return f"{in_words(number // size)} {name}{rest}"
    if number >= 100:
        return f"{in_words(number // 100)} hundred" + (f" and {in_words(number % 100)}" if number % 100 else "")
    if number < 13:
        small = (
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
        )
        return small[number]
    stem = ("", "", "twen", "thir", "for", "fif", "six", "seven", "eigh", "nine")
    if number < 20:
        return {14: "fourteen"}.get(number, f"{stem[number % 10]}teen")
    tens = f"{stem[number // 10]}ty"
    return f"{tens}-{in_words(number % 10)}" if number % 10 else tens


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("He has 3 left, so 10-7 = 3", 3),
        ("It is 10-7", None),
        ("The answer is x1", None),
        ("The final answer is unknown. I guess 12", 12),
        ("The final answer is " + "9" * 5000, None),
        ("The answer is " + "one " * 5000, None),
        ("no number", None),
    ],
)
def test_the_final_number(text: str, number: float | None) -> None:
    assert final_number(text) == number


def test_the_released_reading_of_numbers_has_its_oddities(task: Callable[..., Task]) -> None:
    _, thousand, minus = task("gsm8k").problems()
    grade = task("gsm8k").grade(thousand, r"The final answer is \boxed{1,200}")
    assert (grade.correct, grade.strict) == (True, False), "a comma in a box ends its number"
    assert task("gsm8k").grade(thousand, "The final answer is 1,200.00 dollars").strict
    assert task("gsm8k").grade(minus, "The final answer is 2 - 3 = -1").strict is False, "the first number counts"
    assert gsm8k_answer("It is 12. And 13.") == "13"
    assert gsm8k_answer("none") == ""


@pytest.mark.parametrize(
    "text", [r"\boxed{0.5}", r"The answer is $\frac12$.", "The final answer is 1/2", r"\boxed{x = \dfrac{2}{4}}"]
)
def test_mathematics_is_equal_by_algebra(text: str, task: Callable[..., Task]) -> None:
    math500 = task("math500")
    assert math500.grade(first(math500), text).correct
    assert not math500.grade(first(math500), text.replace("2", "3").replace("5", "6")).correct


def test_algebra_knows_more_than_letters() -> None:
    assert same_by_algebra(r"\left( 3, \frac{\pi}{2} \right)", r"It is \boxed{(3, \pi/2)}")
    assert same_by_algebra("x^2+2x+1", r"\boxed{(x+1)^2}")
    assert not same_by_algebra("x^2+2x+1", r"\boxed{(x+1)^3}")
    assert not same_by_algebra("4", r"\boxed{" + "{" * 500)
    assert last_box(r"\boxed{a{b}c} then \boxed{open") == "a{b}c"
    assert last_box(r"\boxed{1} \fbox \boxed{\left\{ x \right.}") == r"\left\{ x \right.", (
        "a printed brace groups nothing"
    )
    assert last_box(r"\boxed{\boxed{5}}") == "5"


def test_words_are_not_squeezed_into_other_numbers() -> None:
    for gold, answer in ((".5", r"\boxed{5}"), ("23", r"\boxed{2*3}"), ("12", r"\boxed{1 2}")):
        assert not same_words(gold, answer)
    assert same_words(r"\text{Evelyn}", "The answer is **Evelyn**.")
    assert same_words("10,000", r"\boxed{10,\!000}") is True


def test_the_released_reading_of_mathematics_has_its_oddities() -> None:
    assert math_equal("?", r"\boxed{\frac{1}{2}}", "The answer is 0.5.")
    assert math_equal("?", r"\boxed{4}", r"\boxed{3} or \boxed{4}"), "one right box is enough"
    assert math_equal("?", r"\boxed{\text{(C)}}", r"\boxed{(A)+(C)+1}"), "the last letter between brackets counts"
    assert math_equal("Roots separated by commas.", r"\boxed{1,-2}", r"\boxed{-2, 1}")
    assert not math_equal("Roots.", r"\boxed{1,-2}", r"\boxed{-2, 1}")
    assert not math_equal("?", r"\boxed{(x+1)^2}", r"\boxed{x^2+2x+1}"), "it knows no algebra"
    assert not math_equal("?", r"\boxed{1}", rf"\boxed{{\frac{{{'3' * 400}}}{{7}}}}"), "nor does babble stop it"


@pytest.mark.parametrize(
    ("answer", "correct", "strict"),
    [
        ("```python\ndef double(x):\n    return 2 * x\n```", True, True),
        ("Sure:\n```\ndef double(x):\n    return x + x\n```\nUse it: ```python\nprint(double(2))\n```", True, True),
        ("    return 2 * x", True, False),
        ("    return 2 * x\n```\nDone.", True, False),
        ("def double(x):\n    return 2 * x\n```\nThis doubles.", True, False),
        ("```python3.11\r\ndef double(x):\r\n    return 2 * x\r\n```", True, False),
        ("return 2 * x", True, False),
        ("y = x\n    return 2 * y", True, False),
        ("if x:\n        return 2 * x\n    return 0", True, False),
        ("if x:\n    return 2 * x\nreturn 0", True, False),
        ("First ```python\nprint(1)\n```, then ```python\ndef double(x):\n    return 2 * x\n```", True, False),
        ("```python\ndef double(x):\n    return 2 * x", True, True),
        ("def double(x):\n    return x", False, False),
        ("def double(x):\n    return 2 * x\nif __name__ == '__main__':\n    raise SystemExit(1)", True, True),
        ("", False, False),
    ],
)
def test_functions_are_completed(answer: str, correct: bool, strict: bool, task: Callable[..., Task]) -> None:
    humaneval = task("humaneval")
    grade = humaneval.grade(first(humaneval), answer)
    assert (grade.correct, grade.strict) == (correct, strict), completed("HEAD\n", answer, "double")


@pytest.mark.parametrize(
    ("answer", "score", "strict"),
    [
        ("```python\ndef sum(x):\n    return x / 2\n```", 1.0, False),
        ("```python\nimport math\ndef sum(x):\n    return x / 2\n```", 1.0, True),
        ("[BEGIN]\nimport math\ndef sum(x):\n    return x / 2\n[DONE]\nThis halves.", 1.0, False),
        ("```python\nimport math\ndef sum(x):\n    return x\n```", 0.5, False),
        ("```\nimport math\ndef sum(x):\n    return x / 2\n```", 1.0, False),
        ("import math\ndef sum(x):\n    return x / 2", 1.0, True),
    ],
)
def test_small_functions_are_tried(answer: str, score: float, strict: bool, task: Callable[..., Task]) -> None:
    """The released code forgets the tests' imports, so that an answer passes only if it imports them itself."""
    mbpp = task("mbpp")
    grade = mbpp.grade(first(mbpp), answer)
    assert (grade.correct, grade.score, grade.strict) == (score == 1.0, score, strict)


def test_a_mutant_is_wrong(task: Callable[..., Task]) -> None:
    for name in ("humaneval", "mbpp"):
        for problem in task(name).problems():
            assert task(name).grade(problem, problem.answer).correct
            assert task(name).grade(problem, answers(name)["wrong"](problem)).score == 0.0


@pytest.mark.parametrize("name", CODE)
def test_however_a_program_is_written_it_is_right_or_wrong(name: str, tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(item) for item in SAMPLES[name])
    raw = gzip.compress(lines.encode()) if name == "humaneval" else lines.encode()
    (tmp_path / SETS[name][0]).write_bytes(raw)
    _all_styles_are_graded(list(measure_styles(tmp_path, [name])), len(SAMPLES[name]))


def _all_styles_are_graded(rows: list[dict[str, Any]], n: int) -> None:
    assert len(rows) > len(STYLES) == 40
    assert {row["n"] for row in rows} == {n}
    assert {row["style"]: row["unexpected"] for row in rows if row["unexpected"]} == {}


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Sure\n```python\n    return 2 * x\n```", True),
        ("  - So it is:\n```python\n    return 2 * x\n```", True),
        ("return 2 * x\n\nThis doubles x.", True),
        ("double = x\nreturn double * 2", True),
        ("```python\nimport math\n```\nthen\n```python\ndef double(x):\n    return math.floor(2 * x)\n```", True),
        ("```python\ndef double(x):\n    return x\n```\nOr:\n```python\ndef double(x):\n    return 2 * x\n```", False),
        ("```python\nimport os\nfrom __future__ import annotations\ndef double(x):\n    return 2 * x\n```", False),
        ("```python\ndef double(x):\n\ts = '\t'\n\treturn x * (1 + len(s))\n```", True),
        ("\ts = '\t'\n\treturn x * (1 + len(s))", True),
        (f"```python\nLONG = {'9' * 5000}\ndef double(x):\n    return 2 * x\n```", True),
        ("```python\nA = 1\n# ```\ndef double(x):\n    return 2 * x\n```\nDone.", True),
        ("@a\n" * 8000, False),
        ("```\n" * 6000, False),
    ],
)
def test_the_program_is_found(answer: str, right: bool, task: Callable[..., Task]) -> None:
    humaneval = task("humaneval")
    assert humaneval.grade(first(humaneval), answer).correct is right


def test_what_follows_the_mark_is_not_the_answer() -> None:
    for answer in ("a\n[DONE]\n\nMore?\n[BEGIN]\nb\n[DONE]", "[BEGIN]\na\n[DONE]\nb", "a [DONE]\nb", "Hm.\n[BEGIN]\na"):
        assert between_marks(answer).strip() == "a"
    assert between_marks("print('[DONE]', 1)") == "print('[DONE]', 1)"


# --- every item of the public sets -----------------------------------------------------------------------------------

# The released code does not import what a test imports: these references pass only where tests see `math`.
NO_MATH = ["98", "124", "137", "139", "163", "233", "246", "248", "276", "300"]
# Multiple choice: the released code reads the letter in "(C)+1" and calls it right.
LETTERS = ["227", "255", "296"]


@public
@pytest.mark.parametrize("name", SETS)
def test_right_is_right_and_wrong_is_wrong_on_every_item(name: str, record_property: Callable[..., None]) -> None:
    rows = list(measure(PUBLIC, [name]))
    for row in rows:
        record_property(f"{name}/{row['answers']}", row)
        print(row)
    sizes = {"gsm8k": 1319, "math500": 500, "humaneval": 164, "mbpp": 427}
    assert {row["n"] for row in rows} == {sizes[name]}
    assert {row["answers"]: row["unexpected"] for row in rows} == {row["answers"]: [] for row in rows}
    odd = {("mbpp", "gold"): NO_MATH, ("math500", "wrong"): LETTERS}
    for row in rows:
        assert row["unexpected_strict"] == odd.get((name, row["answers"]), []), row["answers"]


@public
@pytest.mark.parametrize("name", ["gsm8k", "math500"])
def test_other_numbers_are_wrong_on_every_item(name: str) -> None:
    """Plus one, negated, and ten, a hundred and a thousand times as large, in four frames each."""
    frames = ("The answer is {}.", "\\boxed{{{}}}", "#### {}", "{}")
    task, tried = get_task(name, data=str(PUBLIC / SETS[name][0])), 0
    for problem in task.problems():
        gold = whole_number(problem.data["gold"])
        if gold is None:  # mathematics other than a number
            continue
        for wrong in {gold + 1, -gold, 10 * gold, 100 * gold, 1000 * gold} - {gold}:
            assert not any(task.grade(problem, frame.format(wrong)).correct for frame in frames), (problem.id, wrong)
        tried += 1
    assert tried == {"gsm8k": 1319, "math500": 386}[name]


@public
@pytest.mark.parametrize("name", CODE)
def test_however_a_solution_is_written(name: str) -> None:
    """Six of each set; `tacg bench graders` tries all."""
    _all_styles_are_graded(list(measure_styles(PUBLIC, [name], limit=6)), 6)


def test_the_documented_table_is_drawn_from_its_rows() -> None:
    docs = Path(__file__).parents[2] / "docs"
    rows = [json.loads(line) for line in (docs / "benchmarks.jsonl").read_text(encoding="utf-8").splitlines()]
    page = (docs / "benchmarks.md").read_text(encoding="utf-8")
    assert [row for row in rows if row["unexpected"]] == []
    lines = style_table(rows).lines
    assert len(lines) == len(STYLES | BODIES | MARKED)
    for line in lines:
        assert f"| {' | '.join(line)} |" in page
    assert len(format_lines()) > 100
    assert all(line in page for line in format_lines())


@public
def test_the_test_split_of_mbpp() -> None:
    file = str(PUBLIC / SETS["mbpp"][0])
    assert len(list(get_task("mbpp", data=file).problems())) == 257
    assert len(list(get_task("mbpp", data=file, subset="all").problems())) == 427


@public
def test_gold_answers_are_equal_to_themselves_by_algebra() -> None:
    """Comparing strings would hide what the algebra cannot parse."""
    problems = get_task("math500", data=str(PUBLIC / SETS["math500"][0])).problems(n=60, seed=1)
    golds = [problem.data["gold"] for problem in problems]
    assert [gold for gold in golds if not same_by_algebra(gold, f"\\boxed{{{gold}}}")] == []


# --- the command line ------------------------------------------------------------------------------------------------


def grade(tmp_path: Path, lines: list[str], *words: str, name: str = "gsm8k") -> Any:
    (tmp_path / "set.jsonl").write_text("\n".join(json.dumps(item) for item in SAMPLES[name]))
    (tmp_path / "answers.jsonl").write_text("\n".join(lines))
    files = ["--data", str(tmp_path / "set.jsonl"), "--answers", str(tmp_path / "answers.jsonl")]
    return CliRunner().invoke(app, ["grade", "--task", name, *files, *words])


def test_grade_counts(tmp_path: Path) -> None:
    lines = ['{"id": 0, "answer": "The final answer is 5"}', "", '{"id": "1", "answer": "\\\\boxed{1,200}"}']
    made = grade(tmp_path, [*lines, '{"id": 2, "answer": "1"}'], "--json", "--out", str(tmp_path / "grades.jsonl"))
    row = json.loads(made.stdout.splitlines()[-1])
    assert (row["correct"], row["n"], row["strict"], row["missing"]) == (2, 3, 1, 0)
    grades = [json.loads(line) for line in (tmp_path / "grades.jsonl").read_text().splitlines()]
    assert sorted((each["id"], each["correct"]) for each in grades) == [("0", True), ("1", True), ("2", False)]
    part = grade(tmp_path, lines)
    assert "1 of 3 problems have no answer and are not counted" in part.stderr
    assert part.stdout.strip() == "2 of 2 right (100.00 %); 1 as the paper's released code reads them"
    code = grade(tmp_path, ['{"id": "HumanEval/0", "answer": "    return x * 2"}'], "--json", name="humaneval")
    assert json.loads(code.stdout.splitlines()[-1])["correct"] == 1


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["{"], r"line 1 is not valid JSON.* A line must be like"),
        (["[]"], "line 1: `id` must be text or a whole number, `answer` text"),
        (['{"id": 0}'], "line 1: `id` must be text or a whole number, `answer` text"),
        (['{"id": 0, "answer": 5}'], "line 1: `id` must be text or a whole number, `answer` text"),
        (['{"id": true, "answer": "5"}'], "line 1: `id` must be text or a whole number, `answer` text"),
        (["", '{"id": 7, "answer": "5"}'], "line 2: no problem has the id '7'; they go from '0' to '2'"),
        (['{"id": 0, "answer": "5"}', '{"id": "0", "answer": "6"}'], "line 2: a second answer to '0'; keep one"),
        ([""], "has no answers; write one per line"),
    ],
)
def test_grade_refuses_what_it_cannot_grade(lines: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(TacgError, match=told):
        raise grade(tmp_path, lines).exception


def test_knobs_of_a_task_are_checked(tmp_path: Path) -> None:
    line = '{"id": 0, "answer": "5"}'
    for words, told in {
        ("--knob", "protocl=paper"): "Unknown knob of gsm8k 'protocl'. Did you mean 'protocol'",
        ("--knob", "protocol=mine"): "`protocol` must be paper | lm-eval, got 'mine'",
        ("--knob", "shots"): "A knob of gsm8k must be written name=value, got 'shots'",
        ("--task", "pocket-math"): "pocket-math is generated, not a benchmark; --task must be one of gsm8k",
    }.items():
        with pytest.raises(TacgError) as caught:
            raise grade(tmp_path, [line], *words).exception
        assert told in str(caught.value)
    refused = CliRunner().invoke(app, ["eval", "--task", "pocket-math", "--data", "x"]).exception
    assert "pocket-math is generated and takes no --data" in str(refused)


def test_tasks_lists_the_sets_and_shows_their_problems(tmp_path: Path) -> None:
    listed = json.loads(CliRunner().invoke(app, ["tasks", "--json"]).stdout.splitlines()[-1])
    assert {*benchmark_names(), "pocket-math"} <= set(listed)
    (tmp_path / "set.jsonl").write_text(json.dumps(GSM8K[0]))
    shown = CliRunner().invoke(app, ["tasks", "gsm8k", "--data", str(tmp_path / "set.jsonl")])
    assert "Your task is to answer" in shown.stdout
    assert "How many is 2 + 3?" in shown.stdout
