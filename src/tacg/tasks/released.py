"""How the paper's released code reads answers to GSM8K and MATH, quirks included, for a fair comparison.

Written from its behaviour. Some quirks: a comma inside a box ends the number ("1,000" is 1); every boxed answer counts,
and one right answer is enough; the letters "is" cut an answer; units are removed only if they are words.
"""

from __future__ import annotations

import re

NUMBER = re.compile(r"-?\d+\.?\d*")


def gsm8k_answer(text: str) -> str:
    """The number read from an answer, as text; empty if there is none."""
    *before, rest = text.split("answer is")
    if box := re.search(r"\\boxed\{([^}]+)\}", rest):
        inside = box.group(1).strip()
        number = NUMBER.search(inside)
        return (number.group() if number else inside).replace(",", "")
    numbers = NUMBER.findall(rest.replace(",", ""))
    if not numbers:
        return ""
    return _without_zeros((numbers[0] if before else numbers[-1]).rstrip("."))


def gsm8k_gold(solution: str) -> str:
    """The number after ####, as text."""
    found = re.search(r"#### (-?[0-9.,]+)", solution)
    return _without_zeros(found.group(1).replace(",", "")) if found else ""


def _without_zeros(number: str) -> str:
    return number.rstrip("0").rstrip(".") if re.fullmatch(r"-?\d+\.\d+", number) else number


def math_equal(question: str, solution: str, answer: str) -> bool:
    """Whether any answer in one text is among those in the other."""
    return bool(_answers(question, solution) & _answers(question, answer))


def _answers(question: str, text: str) -> set[frozenset[str]]:
    """Every answer that a text gives, each as the set of its comma-separated parts."""
    commas = "separated by commas" in question
    found: set[frozenset[str]] = set()
    for told in _told(text):
        answer = _normal(_trimmed(told, keep_equation="in the form" in question, keep_commas=commas))
        if commas:
            parts = [part.strip() for part in re.sub(r"[()\[\]]", "", answer).split(",")]
            found |= {frozenset(parts), frozenset(_decimal(part) or part for part in parts)}
        else:
            for part in re.split(r"\\text\{\s*and\s*\}", answer):
                found |= {frozenset([each]) for each in (part.strip(), _decimal(part.strip())) if each is not None}
    return found


def _told(text: str) -> list[str]:
    """The content of boxes; or else what follows "answer is"; or else the last word with a digit."""
    if "boxed" in text:
        told = _boxed(text)
    elif "answer is" in text:
        rest = text.split("answer is")[-1].strip().split(".\n")[0].strip().split(". ")[0].strip()
        told = rest.split(" or ")
    else:
        told = [word for word in text.split() if re.search(r"\d", word)][-1:] or [text]
    cut = [each.strip().lstrip(":").rstrip(".").rstrip("/") for each in told]
    return [each.replace("\\$", "").replace("$", "") for each in cut]


def _boxed(text: str) -> list[str]:
    """The contents of every closed box; a percent sign after the brace keeps the brace."""
    found = []
    for piece in text.split("boxed{")[1:]:
        depth = 0
        for place, letter in enumerate(piece):
            depth += (letter == "{") - (letter == "}")
            if depth < 0:
                found.append(piece[: place + 1] if piece[place + 1 : place + 2] == "%" else piece[:place])
                break
    return found


def _trimmed(answer: str, *, keep_equation: bool, keep_commas: bool) -> str:
    """Remove surrounding words, units, emphasis, and what comes before an equals sign."""
    answer = answer.split("is")[-1].strip()
    answer = re.sub(r"\\\((.*?)\\\)", r"\1", answer)
    answer = re.sub(r"\*\*(.*?)\*\*", r"\1", answer).strip("*")
    if letters := re.findall(r"\(([A-Za-z])\)", answer):
        answer = letters[-1]
    words = answer.split()
    if len(words) > 1 and all(re.match(r"^[A-Za-z']+$", word) for word in words[:-1]):
        answer = words[-1]
    words = answer.split()
    if len(words) > 1 and words[-1].isalpha():
        for units in (1, 2):
            if len(words) > units and re.search(r"\d", words[-1 - units]):
                answer = " ".join(words[:-units])
                break
    if not keep_equation:
        answer = answer.split("=")[-1].strip()
    if not keep_commas and not re.search(r"\(\d+,\d+\)", answer):
        answer = re.sub(r"-?\d{1,3}(?:,\d{3})*(?:\.\d+)?", lambda found: found.group().replace(",", ""), answer)
    answer = answer.rstrip("%").rstrip("°").split(" \\in ")[-1].strip()
    return _without_zeros(answer)


# Applied in this order; after each of the first group, spaces at the ends are removed.
UNITS = [
    (r"\^\{\\circ\}", ""),
    (r"\^\\circ", ""),
    (r"\{(c|m)?m\}(\^(2|3))?", ""),
    (r"p\.m\.$", ""),
    (r"(\d)\s*t$", r"\1"),
]
SPELLINGS = [
    (r"\\?\$", ""),
    (r"x\\in", ""),
    (r"\\{1,2}%", "%"),
    (r" \.", " 0."),
    (r"\{\.", "{0."),
    (r"\\cdot", ""),
    (r"infinity", r"\\infty"),
]
LATER = [
    (r"\\mathbf|\\mathrm", ""),
    (r"\\mbox\{.*?\}", ""),
]
NUMBERS = [
    (r"(\d+)\.0+([^\d])", r"\1\2"),
    (r"(\d+)\.0+$", r"\1"),
]
ARGUMENTS = [
    (r"\\(sqrt|tan)(-?[0-9.a-zA-Z]+)", r"\\\1{\2}"),
    (r"\\(sqrt|tan)\s+(\w+)$", r"\\\1{\2}"),
    (r" ", ""),
]


def _normal(answer: str) -> str:
    """One spelling for what LaTeX can write in many ways."""
    answer = answer.strip().replace("\n", "").rstrip(".").replace("\\!", "")
    if answer.startswith("\\text{") and answer.endswith("}"):
        answer = answer[6:-1]
    answer = re.sub(r"\\left|\\right", "", re.sub(r"[tdc]frac", "frac", answer))
    answer = re.sub(r"\\text\{.*?\}$", "", answer).strip() or answer
    for pattern, new in UNITS:
        answer = re.sub(pattern, new, answer).strip()
    answer = _rewrite(answer, SPELLINGS)
    if "\\infty" not in answer:
        answer = answer.replace("inf", "\\infty")
    answer = _rewrite(answer, LATER)
    if "i" not in answer:
        answer = answer.replace("j", "i")
    answer = _rewrite(answer, NUMBERS)
    answer = "0" + answer if answer.startswith(".") else answer
    answer = _rewrite(answer, ARGUMENTS)
    return re.sub(r"(\\|,|\.)+$", "", _fraction(_braced(answer)))


def _rewrite(text: str, rules: list[tuple[str, str]]) -> str:
    for pattern, new in rules:
        text = re.sub(pattern, new, text)
    return text


def _braced(answer: str) -> str:
    r"""\frac12 and \frac1{23} with braces; unchanged if any is too short for that."""
    first, *rest = answer.split("\\frac")
    if any(not part.startswith("{") and len(part) < 2 for part in rest):
        return answer
    for part in rest:
        if not part.startswith("{"):
            above, below, after = part[0], part[1], part[2:]
            part = f"{{{above}}}" + (below if below == "{" else f"{{{below}}}") + after
        first += "\\frac" + part
    return first


def _fraction(answer: str) -> str:
    """a/b as LaTeX, if that is the whole answer and each side is an integer or has a root."""
    sides = answer.split("/")
    whole = [side for side in sides if "sqrt" in side or (re.fullmatch(r"0|-?[1-9]\d*", side))]
    return f"\\frac{{{sides[0]}}}{{{sides[1]}}}" if len(sides) == 2 and len(whole) == 2 else answer


def _decimal(answer: str) -> str | None:
    r"""\frac of integers as a decimal, otherwise None."""
    if "frac" not in answer:
        return None
    bare = answer.replace("\\dfrac", "").replace("\\frac", "")
    minus = bare.startswith("-")
    parts = bare.removeprefix("-").strip("{}").split("}{")
    if len(parts) != 2 or not all(re.fullmatch(r"-?\d+", part) for part in parts):
        return None
    try:
        value = int(parts[0]) / int(parts[1])
    except (ZeroDivisionError, OverflowError, ValueError):  # the last two: hundreds of digits
        return None
    return str(-value if minus else value)
