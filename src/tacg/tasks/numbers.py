"""Numbers as people write them: grouped digits, fractions, powers of ten, thousands and dozens, words.

Ambiguous notations are read as English: 1.200 is a little more than one, 1,200 is more than a thousand.
A comma before one or two digits, or after a single 0, has no English meaning and is a decimal comma: 12,5 and 0,125.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 300  # characters; anything longer is not a meaningful number
POWERS = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
LETTERS = {"k": 10**3, "m": 10**6, "b": 10**9, "bn": 10**9}  # only after money: "5k" may be a race
HALVES = {"half": Fraction(1, 2), "quarter": Fraction(1, 4)}

AMOUNT = "|".join(
    (
        r"\d{1,3}(?:\.\d{3})+,\d{1,2}(?![\d,])",  # 1.200,50
        r"\d{1,3}(?:\.\d{3}){2,}(?![\d.,]*\d)",  # 1.200.000
        r"[1-9]\d?(?:,\d{2})+,\d{3}(?!\d)(?:\.\d+)?",  # 1,00,000
        r"[1-9]\d{0,2}(?:,\d{3})+(?!\d)(?:\.\d+)?",
        r"[1-9]\d{0,2}(?:[ '’]\d{3})+(?!\d)(?:\.\d+|,\d{1,2}(?!\d))?",
        r"(?<!\d,)(?:\d+,\d{1,2}|0,\d+)(?!,?\d)",  # 12,5
        r"\d+(?:\.\d+)?",
        r"\.\d+",
    )
)
NUMBER = re.compile(
    rf"""
    (?: (?<![\w.)]) (?P<sign> [-−–]\s? | (?:negative|minus)\s ) )?
    (?P<money> [$€£¥₹]\s? )? (?P<minus> [-−] )?
    (?<![\w.^√]) (?<!\.\d)
    (?:
        (?P<whole> \d+ ) \s+ (?:and\s+)? (?P<part> \d{{1,2}}\s?/\s?\d+ ) (?![\d/]|\.\d)     # 1 1/2
      | (?P<amount> {AMOUNT} )
        (?: \s?/\s? (?P<below> [1-9]\d{{0,2}}(?:,\d{{3}})+(?!\d) | \d+ ) (?!\d|\.\d) )?
        (?: :00(?!\d) )?                                                                   # five o'clock
        (?: \s?[×x·]\s? 10\s?\^\s? (?P<tens> [-+−]?\d{{1,3}} ) | e(?P<e> [-+]?\d{{1,3}} )(?!\w)
          | \s?\^\s?\(? (?P<power> -?\d{{1,2}} )(?!\d) \)? )?
        (?: \s+and\s+a\s+(?P<half> half | quarter )\b )?
    )
    (?: (?:\s{{0,3}}|-) (?P<scale> {"|".join(POWERS)} )s?\b | (?(money)(?P<letter> bn | [kmb] )\b|(?!)) )?
    """,
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True)
class FoundNumber:
    """A number and its position; no value if it is undefined, such as 1/0, or too long to be meant."""

    value: Fraction | None
    start: int
    end: int


def find_numbers(text: str, units: frozenset[str] = frozenset()) -> list[FoundNumber]:
    """Every number in digits, and one in words if the text begins with it; words in `units` do not scale."""
    found: list[tuple[FoundNumber, int]] = []
    for match in NUMBER.finditer(text):
        scale = _scale(match, units)
        number = FoundNumber(_value(match, scale), match.start(), match.end())
        if found and _continues(*found[-1], number, text):  # 2 million 500 thousand
            last, _ = found.pop()
            assert last.value is not None
            assert number.value is not None
            number = FoundNumber(last.value + number.value, last.start, number.end)
        found.append((number, scale))
    numbers = [number for number, _ in found]
    spelled = _in_words(text, units)
    return [spelled, *numbers] if spelled is not None else numbers


def whole_number(text: str) -> Fraction | None:
    """The value of a text that is just one number. A single comma may separate two numbers, so it is not accepted."""
    text = plain(text).strip(" $")
    numbers = [] if re.search(r",\d{1,2}(?!\d)", text) else find_numbers(text)
    whole = len(numbers) == 1 and (numbers[0].start, numbers[0].end) == (0, len(text))
    return numbers[0].value if whole else None


def _scale(match: re.Match[str], units: frozenset[str]) -> int:
    word = (match["scale"] or "").lower()
    if word and word not in units:
        return POWERS[word]
    return LETTERS[match["letter"].lower()] if match["letter"] else 1


def _continues(last: FoundNumber, scale: int, number: FoundNumber, text: str) -> bool:
    """Whether a number continues a scaled one before it."""
    if scale < 1000 or not last.value or number.value is None or last.end == number.start:
        return False
    return text[last.end : number.start].isspace() and 0 < number.value < scale and text[number.start].isdigit()


def _value(match: re.Match[str], scale: int) -> Fraction | None:
    if match.end() - match.start() > LONGEST:
        return None
    try:
        if match["whole"]:
            part = Fraction(re.sub(r"\s", "", match["part"]))
            if part >= 1:
                return None
            value = int(match["whole"]) + part
        else:
            value = _decimal(match["amount"]) / int((match["below"] or "1").replace(",", ""))
            value *= Fraction(10) ** int((match["tens"] or match["e"] or "0").replace("−", "-"))
            value **= int(match["power"] or 1)
            value += HALVES.get((match["half"] or "").lower(), 0)
    except ZeroDivisionError:
        return None
    return -value * scale if match["sign"] or match["minus"] else value * scale


def _decimal(amount: str) -> Fraction:
    """The value of digits with separators; the last separator may be a decimal one."""
    amount = re.sub("[ '’]", "", amount)
    if re.fullmatch(r"[\d.]*,\d{1,2}|0,\d+", amount):
        amount = amount.replace(".", "").replace(",", ".")
    elif amount.count(".") > 1:
        amount = amount.replace(".", "")
    return Fraction(amount.replace(",", ""))


# --- words -----------------------------------------------------------------------------------------------------------

ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
PARTS = ("half", "third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")  # 1/2 to 1/10


def _spell(number: int) -> str:
    """A number up to 999 in words, without "and" and hyphens."""
    hundreds, rest = divmod(number, 100)
    tens, ones = divmod(rest, 10)
    words = [ONES[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        words += [TENS[tens - 2], ONES[ones]] if ones else [TENS[tens - 2]]
    elif rest or not words:
        words += [ONES[rest]]
    return " ".join(words)


SMALL = {f"{_spell(number)} hundred": 100 * number for number in range(11, 100)}  # twelve hundred
SMALL |= {_spell(number): number for number in range(1000)}
WORD = rf"(?:{'|'.join([*ONES, *TENS, *POWERS, *(part + 's?' for part in PARTS), 'fourths?', 'halves', 'an?'])})\b"
HEDGES = r"about|approximately|approx|around|roughly|exactly|nearly|only|just|a total of"
IN_WORDS = re.compile(
    rf"\W*(?:(?:{HEDGES})\W+)*(?P<sign>(?:negative|minus)\s+)?(?P<words>(?>{WORD}(?:(?:\s+|-)(?:and\s+)?{WORD})*))"
    r"(?!\s+of\b|-)",
    re.IGNORECASE,
)


def _in_words(text: str, units: frozenset[str]) -> FoundNumber | None:
    """The number in words at the beginning of a text: "eighteen", "two and a half", "a dozen", "three quarters"."""
    match = IN_WORDS.match(text)
    if match is None or len(match["words"]) > LONGEST:
        return None
    words = re.sub(r"-|\s+", " ", match["words"].lower())
    words = re.sub(r"(?:^|\s)an?$", "", words)  # "eighteen a day"
    words = re.sub(r"\ban?\b", "one", words).replace("halves", "half").replace("fourth", "quarter")
    value = _sum_of_words(words, units) if words else None
    if value is None:
        return None
    return FoundNumber(-value if match["sign"] else value, match.start("words"), match.end())


def _sum_of_words(words: str, units: frozenset[str]) -> Fraction | None:
    """Scaled parts and the rest, optionally followed by "and" a fraction. None if the words do not form a number."""
    whole, _, last = words.rpartition(" and ")
    count, _, name = last.rpartition(" ")
    name = name if name in PARTS else name.removesuffix("s")
    if name in PARTS:
        part = Fraction(SMALL.get(count or "one", 0), PARTS.index(name) + 2)
        before = _sum_of_words(whole, units) if whole else Fraction(0)
        return None if before is None or not part else before + part
    total, limit, rest = Fraction(0), 10**15, words.replace(" and ", " ")
    for name in ("trillion", "billion", "million", "thousand", "dozen"):
        before_name, found, rest = rest.partition(name) if name in rest else ("", "", rest)
        if not found:
            continue
        scale = 1 if name in units else POWERS[name]
        count_of = SMALL.get(before_name.strip() or "one")
        if count_of is None or scale >= limit:
            return None
        total, limit, rest = total + count_of * scale, scale, rest.strip()
    if not rest:
        return total
    rest = "one hundred" if rest == "hundred" else rest
    return None if rest not in SMALL or (total and limit < 1000) else total + SMALL[rest]


# --- LaTeX, Markdown, Unicode ----------------------------------------------------------------------------------------

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
SPELLINGS: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"[\u00a0\u2007\u2009\u202f]|\\[,;: ]|~", " "),
    (r"\\!|`", ""),
    (r"(?m)^\s*[-*+•]\s+", ""),  # bullets; a number's sign has no space after it
    (r"(?<=\d)\*\*(?=\d)", "^"),
    (r"\*\*|__", ""),
    (r"(?<=[\d)])\s*\*\s*(?=[\d($\\])", " × "),
    (r"\*|_(?!\{)", ""),
    (r"\\[dtc]?frac\s*\{\s*([\d.,]+)\s*\}\s*\{\s*([\d.,]+)\s*\}", r" \1/\2"),
    (r"\\[dtc]?frac\s*(\d)\s*(\d)", r" \1/\2"),
    (r"[¼-¾⅐-⅞]", lambda match: " " + unicodedata.normalize("NFKC", match[0]).replace("\N{FRACTION SLASH}", "/")),
    (r"(?<=10)[⁻⁰¹²³⁴-⁹]+", lambda match: "^" + match[0].translate(SUPERSCRIPTS)),
    (r"\^\s*\{\s*([^{}]*?)\s*\}", r"^\1"),
    (r"_\{[^{}]*\}", ""),
    (r"\\(?:times|cdot)(?![a-zA-Z])", "×"),
    (r"\\(?:approx|sim|simeq)(?![a-zA-Z])", "≈"),
    (r"\\(?:to|rightarrow|Rightarrow|implies|therefore)(?![a-zA-Z])", "⇒"),
    (r"\\sqrt\s*(?:\[\d+\])?\s*\{?\s*", "√"),
    (r"\\(?:boxed|text[a-z]*|math[a-z]+|mbox|left|right|displaystyle)(?![a-zA-Z])\s*", ""),
    (r"\\[()\[\]]|\\(?=[$%#&])|[{}]", ""),
]  # fmt: skip
COMPILED = [(re.compile(pattern), new) for pattern, new in SPELLINGS]


def plain(text: str) -> str:
    """Normalize the notation and spacing of numbers in LaTeX, Markdown and typeset text."""
    for pattern, new in COMPILED:
        text = pattern.sub(new, text)
    return text
