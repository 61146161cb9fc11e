"""A hundred ways to write an answer to GSM8K or MATH: what each means, and what it must not be taken for.

Besides the listed misreadings, every number is also compared with itself plus one, negated, and ten, a hundred and a
thousand times as large.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from tacg.records.surroundings import surroundings
from tacg.tasks.base import Grade, Problem
from tacg.tasks.gsm8k import GSM8K
from tacg.tasks.math500 import Math500

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tacg.records.rows import ResultRow
    from tacg.tasks import Task

NO_NUMBER = "none"  # the meaning of an answer that is not one number


@dataclass(frozen=True)
class Format:
    """An answer, the gold answer that it means, and gold answers that it does not mean."""

    task: str
    answer: str
    means: str
    not_these: tuple[str, ...]
    question: str = ""

    def grade(self, gold: str) -> Grade:
        """The grade of the answer if `gold` is right."""
        task: Task = GSM8K() if self.task == "gsm8k" else Math500()
        solution = f"#### {gold}" if self.task == "gsm8k" else f"\\boxed{{{gold}}}"
        data = {"gold": gold, "question": self.question, "solution": solution}
        return task.grade(Problem("format", "", "", data), self.answer)


# Answers to GSM8K: the answer, what it means, and numbers that a careless reader would take it for.
NUMBERS: list[tuple[str, ...]] = [
    # digits
    ("The final answer is 18.", "18"),
    ("18", "18"),
    ("#### 18", "18"),
    ("Answer: 18", "18"),
    ("The answer is **18**.", "18"),
    ("The answer is `18`.", "18"),
    ("The final answer is $18$.", "18"),
    (r"\[ \boxed{18} \]", "18"),
    (r"We get \boxed{3}. No, \boxed{4 \text{ apples}}.", "4", "3"),
    (r"The answer is \boxed{18}. Check: 18 - 3 = 15.", "18", "3", "15"),
    ("The answer is 18.0", "18"),
    ("The answer is .5", "1/2", "5"),
    ("The answer is 18apples", "18"),
    # groups of digits
    ("The answer is 1,200.", "1200", "1", "200"),
    ("The answer is 1 200.", "1200", "1", "200"),
    ("The answer is 1\u202f200.", "1200", "1", "200"),
    (r"The answer is $1\,200$.", "1200", "1", "200"),
    (r"\boxed{1{,}200{,}000}", "1200000", "1", "0"),
    (r"\boxed{10,\!080}", "10080", "10"),
    ("The answer is 1'200.", "1200", "1", "200"),
    ("The answer is 1_200.", "1200", "1"),
    ("The answer is 1,00,000 rupees.", "100000", "1"),
    ("The answer is 1.200.000.", "1200000", "6/5"),
    ("The answer is 1.200,50 €.", "1200.5", "6/5", "1"),
    ("The answer is 1.200.", "6/5", "1200"),
    ("The answer is 12,5 kg.", "25/2", "12", "125"),
    ("The answer is 0,125.", "1/8", "125", "0"),
    # money and units
    ("The answer is $18.", "18"),
    (r"\boxed{\$1,000}", "1000", "1"),
    ("The answer is $18.50 per hour.", "37/2", "18"),
    ("The answer is 18 dollars and 0 cents.", "18", "0"),
    ("The answer is €18.", "18"),
    ("The answer is 18 USD.", "18"),
    ("The answer is $5k.", "5000", "5"),
    ("The answer is a 5k.", "5", "5000"),
    ("The answer is $2M.", "2000000", "2"),
    ("The area is 18 m^2.", "18", "2", "324"),
    (r"\boxed{18\text{ cm}^2}", "18", "2"),
    ("The answer is 50%.", "50", "1/2"),
    (r"\boxed{50\%}", "50", "1/2"),
    ("The answer is 5:00 PM.", "5", "0"),
    ("The answer is May 15th.", "15"),
    # signs
    ("The answer is -7.", "-7", "7"),
    ("The answer is −7.", "-7", "7"),
    ("The answer is negative 5.", "-5", "5"),
    ("The answer is minus $5.", "-5", "5"),
    ("The answer is -$5.", "-5", "5"),
    ("The answer is:\n- 18 apples", "18", "-18"),
    # fractions
    ("The answer is 3/4.", "3/4", "3", "4"),
    (r"\boxed{\frac{3}{4}}", "3/4", "3", "4"),
    (r"\boxed{\dfrac34}", "3/4", "3", "34"),
    (r"\boxed{-\frac{1}{2}}", "-1/2", "1/2"),
    ("The answer is 1 1/2.", "3/2", "11/2", "1"),
    (r"\boxed{1\frac{1}{2}}", "3/2", "11/2", "1/2"),
    ("The answer is 2½.", "5/2", "2", "1/2"),
    ("The answer is ¾.", "3/4", "3"),
    ("The answer is 2 and a half hours.", "5/2", "2"),
    ("The answer is 2 and 1/2 cups.", "5/2", "2"),
    # powers and scales
    (r"\boxed{1.2 \times 10^3}", "1200", "6/5", "12/10"),
    ("The answer is 1.2 × 10³.", "1200", "6/5"),
    (r"The answer is $3.5 \cdot 10^{-2}$.", "7/200", "7/2"),
    ("The answer is 1.2e3.", "1200", "6/5"),
    ("The answer is 2^5.", "32", "2", "5"),
    ("The answer is 1.2 thousand.", "1200", "6/5"),
    ("The answer is $2 million.", "2000000", "2"),
    (r"\boxed{1.5 \text{ billion}}", "1500000000", "3/2"),
    ("The answer is 2 million 500 thousand.", "2500000", "2000000", "500000"),
    ("The answer is 2 dozen.", "24", "2"),
    # words
    ("The answer is eighteen.", "18", "8"),
    ("The answer is twenty-one dollars.", "21", "20", "1"),
    ("The answer is one hundred and five.", "105", "100", "5"),
    ("The answer is two thousand five hundred.", "2500", "2000", "2"),
    (r"\boxed{\text{eighteen}}", "18"),
    ("The answer is a dozen eggs.", "12", "1"),
    ("The answer is two and a half.", "5/2", "2"),
    ("The answer is three quarters.", "3/4", "3"),
    ("The answer is negative seven.", "-7", "7"),
    ("The answer is eighteen (18).", "18"),
    # sentences: the final result of their numbers
    ("The answer is 5 + 3 = 8 eggs.", "8", "5", "3"),
    ("The answer is about 17.99, so 18.", "18", "17.99"),
    (r"The answer is $17.99 \approx 18$.", "18", "17.99"),
    ("The answer is 20 % of 90, which is 18.", "18", "20", "90"),
    ("The answer is 18, which is 20% of 90.", "18", "20", "90"),
    ("The answer is 18, which is 3 more than 15.", "18", "3", "15"),
    ("The answer is 3 apples, 5 pears, 8 in total.", "8", "3", "5"),
    ("The answer is 3 apples and 5 pears, for a total of 8.", "8", "3", "5"),
    ("The answer is:\n- Apples: 3\n- Pears: 5\n- Total: 8", "8", "3", "5"),
    ("The answer is 3 apples and 5 pears. In total, 8.", "8", "3", "5"),
    ("The final answer is: The total for 3 nights is $300.", "300", "3"),
    ("The answer is not 5 but 6.", "6", "5"),
    ("The answer is 8 because the first is 3 and the other is 5.", "8", "3", "5"),
    ("The answer is 5 (check: 5 + 3 = 8).", "5", "3", "8"),
    ("The answer is 12 (7 + 5).", "12", "7", "5"),
    ("The answer is 18. I hope that my answer is right.", "18"),
    ("#### Step 2: The cost\nIt is 15.\nThe answer is 15.", "15", "2"),
    # no number at all, or more than one
    ("The answer is 10-12 days.", NO_NUMBER, "10", "12", "-2"),
    ("The answer is between 10 and 12.", NO_NUMBER, "10", "12"),
    ("The answer is 3, 5.", NO_NUMBER, "3", "5", "35"),
    ("The answer is 10 - 7.", NO_NUMBER, "10", "7", "-7"),
    ("The answer is 2*3.", NO_NUMBER, "2", "3", "23"),
    ("The answer is 3:30 PM.", NO_NUMBER, "3", "30"),
    ("The answer is 2:1.", NO_NUMBER, "2", "1"),
    (r"\boxed{\sqrt{16}}", NO_NUMBER, "16"),
    ("The answer is 1/0.", NO_NUMBER, "1", "0"),
    ("The answer is a lot.", NO_NUMBER, "1", "0"),
]

# Answers to MATH: the answer, an expression that it equals, and some that it does not.
EXPRESSIONS: list[tuple[str, ...]] = [
    (r"\boxed{x<2}", r"(-\infty,2)", r"(-\infty,2]", r"(2,\infty)"),
    (r"\boxed{x \le 0}", r"(-\infty,0]", r"(-\infty,0)"),
    (r"\boxed{5 < x}", r"(5,\infty)", r"[5,\infty)", r"(-\infty,5)"),
    (r"\boxed{2 \leq x < 3}", "[2,3)", "(2,3)", "[2,3]"),
    (r"\boxed{x \in [-2,7]}", "[-2,7]", "[-2,7)"),
    (r"\boxed{x<2 \text{ or } x>3}", r"(-\infty,2)\cup(3,\infty)", r"(-\infty,2)\cup[3,\infty)", "(2,3)"),
    ("The final answer is x < 2 or x > 3.", r"(-\infty, 2) \cup (3, \infty)", r"(-\infty,2)\cup(4,\infty)"),
    (r"\boxed{x \ne 2}", r"(-\infty,2)\cup(2,\infty)", r"(-\infty,3)\cup(3,\infty)"),
    (r"\boxed{3<x<4}", "3<x<4", "(3,4)", "3<x<5"),
    (r"\boxed{\varnothing}", r"\emptyset", "0"),
    ("The final answer is approximately 5.", "5", "6", "0.5"),
    (r"\boxed{\approx 5}", "5", "6"),
    (r"\boxed{0.5}", r"\frac{1}{2}", r"\frac{1}{3}", "5"),
    (r"\boxed{0.33333333}", "0.33333333", r"\frac{1}{3}"),
    (r"\boxed{1.41421356}", "1.41421356", r"\sqrt{2}"),
    (r"\boxed{1\frac{1}{2}}", r"\frac{3}{2}", r"\frac{1}{2}", r"\frac{11}{2}"),
    (r"\boxed{1.2 \text{ thousand}}", "1200", "1.2"),
    (r"\boxed{1 200}", "1200", "200", "1"),
    (r"\boxed{\text{eighteen}}", "18", "8"),
    (r"\boxed{1,2}", "1,2", "1.2", "12"),
    (r"\boxed{x = \pm 3}", r"\pm 3", "3", "-3"),
    (r"\boxed{\{1, 2\}}", r"\{2, 1\}", r"\{1, 3\}"),
]


def number_formats() -> Iterator[Format]:
    """The whole table."""
    for answer, means, *others in NUMBERS:
        wrong = [] if means == NO_NUMBER else _wrong(Fraction(means))
        yield Format("gsm8k", answer, means, tuple(dict.fromkeys([*others, *wrong])))
    yield Format("gsm8k", "The answer is 2 dozen.", "2", ("24", "12"), "How many dozens of eggs does she need?")
    for answer, means, *others in EXPRESSIONS:
        yield Format("math500", answer, means, tuple(others))
    yield Format("math500", r"\boxed{2<x<3}", "(2,3)", ("[2,3]", "(2,4)"), "Answer in interval notation.")


def _wrong(value: Fraction) -> list[str]:
    changed = [value + 1, -value, *(value * scale for scale in (10, 100, 1000))]
    return [str(each) for each in changed if each != value]


def measure() -> Iterator[ResultRow]:
    """Rows for `tacg bench graders`: every format against its meaning, and against everything it does not mean."""
    table = list(number_formats())
    for task in ("gsm8k", "math500"):
        mine = [each for each in table if each.task == task]
        yield _row(task, "formats", [(each, each.means) for each in mine if each.means != NO_NUMBER], True)
        yield _row(task, "misreadings", [(each, wrong) for each in mine for wrong in each.not_these], False)


def _row(task: str, kind: str, pairs: list[tuple[Format, str]], expected: bool) -> ResultRow:
    began = time.perf_counter()
    graded = [(each.answer, gold, each.grade(gold)) for each, gold in pairs]
    return {
        "bench": "graders",
        "task": task,
        "answers": kind,
        "n": len(graded),
        "correct": sum(grade.correct for _, _, grade in graded),
        "strict": sum(bool(grade.strict) for _, _, grade in graded),
        "unexpected": [f"{answer} | {gold}" for answer, gold, grade in graded if grade.correct is not expected],
        "unexpected_strict": [f"{answer} | {gold}" for answer, gold, grade in graded if grade.strict is not expected],
        "seconds": time.perf_counter() - began,
        **surroundings(),
    }


def format_lines() -> list[str]:
    """One line of a Markdown table per format: set, answer, meaning. Shown in docs/benchmarks.md."""

    def cell(text: str) -> str:
        return "`" + text.replace("\n", " ⏎ ").replace("`", "'").replace("|", "\\|") + "`"

    return [f"| {each.task} | {cell(each.answer)} | {cell(each.means)} |" for each in number_formats()]
