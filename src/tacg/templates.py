"""Chat templates: a stranger's program, run in a sandbox that counts its steps and what it makes.

They get what Hugging Face gives them: `break` and `continue`, `tojson` that leaves text as it is, `strftime_now`,
`raise_exception`, `{% generation %}`. A template that loops for ever, or makes a text of a terabyte, ends in an error,
and ends there on every machine: steps are counted, not seconds.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import Template, nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from jinja2.parser import Parser
    from jinja2.runtime import Context

STEPS = 1 << 21  # iterations, calls and operations of one rendering; every `CHARACTERS` looked at are another
CHARACTERS = 1 << 8
CALL = 8  # steps that a call counts for
ITEM = 16  # characters that an item of a list counts for
LARGEST = 1 << 22  # characters of a text, or items of a list, that a template may make
BITS = 1 << 12  # of a whole number
WIDE = re.compile(r"\d{6}")  # a width in a format: '%999999999d' is a text of a gigabyte

MULTIPLY = {"replace", "join", "expandtabs", "translate", "indent"}
WRITE = {"string", "tojson", "join", "format", "trim", "replace", "upper", "lower", "title", "capitalize", "center"}
WRITE |= {"escape", "forceescape", "safe", "urlencode", "indent", "truncate", "striptags", "xmlattr", "wordcount"}
UNUSED = ("wordwrap", "urlize", "pprint", "filesizeformat")  # slow, and for web pages

_left: ContextVar[int] = ContextVar("steps left", default=STEPS)


def render(source: str, values: Mapping[str, Any]) -> str:
    """The text that a template makes of some values, or an error."""
    token = _left.set(STEPS)
    try:
        return _template(source).render(values)
    except TacgError:
        raise
    except Exception as error:  # a template may fail in any way that a program can
        raise TacgError(f"The checkpoint's chat template fails: {error or type(error).__name__}") from None
    finally:
        _left.reset(token)


@functools.lru_cache(maxsize=8)
def _template(source: str) -> Template:
    return _sandbox().from_string(source)


def _spend(*seen: Any, steps: int = 1) -> None:
    """Count steps, and the sizes of what they look at."""
    size = max(map(_size, seen), default=0)
    if size > LARGEST:
        _refuse_work(f"it makes a text or list of more than {LARGEST:,} characters")
    left = _left.get() - steps - size // CHARACTERS
    if left < 0:
        _refuse_work(f"it does not end within {STEPS:,} steps")
    _left.set(left)


def _size(value: Any) -> int:
    """In characters; of a list, without looking into it."""
    if isinstance(value, str):
        return len(value)
    return ITEM * len(value) if isinstance(value, list | tuple | dict | range) else 0


def _written(value: Any) -> Any:
    """What is about to become text: a list that holds another many times is small until then."""
    waiting, size = [value], 0
    while waiting and size <= LARGEST:
        each = waiting.pop()
        size += 1 + (len(each) if isinstance(each, str) else 0)
        if isinstance(each, dict):
            waiting += [*each, *each.values()]
        elif isinstance(each, list | tuple):
            waiting += each
    if size > LARGEST:
        _refuse_work(f"it writes more than {LARGEST:,} characters")
    return value


def _refuse_work(why: str) -> NoReturn:
    raise TacgError(f"The checkpoint's chat template is refused: {why}.")


def _refuse_large(numbers: Iterable[Any]) -> None:
    """A number given to a method or filter may be a width or a count."""
    if any(isinstance(number, int) and abs(number) > LARGEST for number in numbers):
        _refuse_work(f"it asks for more than {LARGEST:,} of something")


def _seen(value: Any) -> Any:
    """What a template compares, slices or has put together."""
    _spend(value)
    return value


def _walked(values: Any) -> Any:
    """What a template loops over."""
    if hasattr(values, "__next__"):
        return _each(values)
    _spend(values)
    _left.set(_left.get() - _size(values) // ITEM)
    return values


def _each(values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        _spend()
        yield value


def _watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that counts."""

    @functools.wraps(function)  # with the marks that tell jinja what to pass
    def watched(*args: Any, **named: Any) -> Any:
        _refuse_large((*args, *named.values()))
        _spend(*args, *named.values())
        _refuse_product(name, args)
        made = function(*args, **named)
        _spend(made)
        return made

    return watched


def _refuse_product(name: str, args: tuple[Any, ...]) -> None:
    """Texts that are put between others, or in their place: what comes of it is as large as both sizes multiplied."""
    if name in WRITE:
        _written(list(args))
    if name in MULTIPLY:
        sizes = [each if isinstance(each, int) else _size(each) for each in args]
        large, second, *_ = *sorted(sizes, reverse=True), 1, 1
        _refuse_large([large * second // 16])
    if name in ("format", "strftime_now") and any(isinstance(arg, str) and WIDE.search(arg) for arg in args):
        _refuse_work("it asks for a very wide format")


class _Walks(NodeTransformer):
    """Has everything counted that jinja compiles to plain Python: loops, comparisons, slices, concatenations."""

    def __init__(self, environment: Sandbox) -> None:
        self.environment = environment

    def _through(self, name: str, node: nodes.Expr) -> nodes.Expr:
        made = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
        made.set_environment(self.environment)
        return made

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = self._through("_walked", node.iter)  # type: ignore[arg-type]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [self._through("_written", part) for part in node.nodes]
        return self._through("_seen", node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = self._through("_seen", node.expr)
        for operand in node.ops:
            operand.expr = self._through("_seen", operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = self._through("_seen", node.node)
        return node


class Generation(Extension):
    """{% generation %}: what the assistant says. Training asks where that is; here it is a plain block."""

    tags = {"generation"}  # noqa: RUF012 (declared by jinja)

    def parse(self, parser: Parser) -> nodes.Node:
        """The block's body in a scope of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """No attribute that leads out, no change to what it is given, and no more work than `STEPS`."""

    intercepted_binops = frozenset({"+", "*", "**", "%", "-", "/", "//"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        found: nodes.Template = _Walks(self).visit(super()._parse(source, name, filename))
        return found

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operation, if what comes of it is not too large."""
        numbers = [abs(each) for each in (left, right) if isinstance(each, int)]
        bits = [number.bit_length() for number in numbers]
        if operator == "*" and len(numbers) == 1 and _size(left) + _size(right):
            _refuse_large([(_size(left) + _size(right)) * numbers[0]])
        if len(bits) == 2 and (bits[0] * numbers[1] if operator == "**" else sum(bits)) > BITS:
            _refuse_work(f"it makes a number of more than {BITS:,} bits")
        if operator == "%" and isinstance(left, str):
            _refuse_product("format", (left, right))
            _refuse_large(right if isinstance(right, tuple) else (right,))
        _spend(left, right)
        made = super().call_binop(context, operator, left, right)
        _spend(made)
        return made

    def call(self, context: Context, obj: Any, /, *args: Any, **named: Any) -> Any:
        """A call, if neither what goes in nor what comes out is too large."""
        of = getattr(obj, "__self__", None)
        _refuse_large((*args, *named.values()))
        _spend(of, *args, *named.values(), steps=CALL)
        _refuse_product(getattr(obj, "__name__", ""), (of, *args))
        made = super().call(context, obj, *args, **named)
        _spend(made)
        return made

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` under guard; a format with very wide fields is refused."""
        made = super().wrap_str_format(value)
        if made is not None:
            _refuse_product("format", (str(value.__self__),))
        return made

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join what was written."""
        found, size = [], 0
        for piece in pieces:
            size += len(piece)
            if size > LARGEST:
                _refuse_work(f"it writes more than {LARGEST:,} characters")
            found.append(piece)
        return "".join(found)


@functools.cache
def _sandbox() -> Sandbox:
    sandbox = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_written,
        cache_size=0,
        extensions=["jinja2.ext.loopcontrols", Generation],
    )
    sandbox.filters["tojson"] = tojson
    for name in UNUSED:
        del sandbox.filters[name]
    tables: tuple[dict[str, Any], ...] = (sandbox.filters, sandbox.tests)
    for table in tables:
        table.update({name: _watched(name, function) for name, function in table.items()})
    sandbox.filters.update(_seen=_seen, _walked=_walked, _written=_written)
    del sandbox.globals["lipsum"]  # filler text of any length
    sandbox.globals.update(raise_exception=_raise_exception, strftime_now=strftime_now)
    return sandbox


def _raise_exception(message: str) -> None:
    raise TacgError(f"The chat template refuses these messages: {message}")


def tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """As Hugging Face has it: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format: str) -> str:
    """Today's date in a format."""
    return datetime.datetime.now().strftime(format)
