"""Chat templates are untrusted programs: they run in a sandbox that counts their steps and the size of their results.

They get what Hugging Face provides: `break` and `continue`, `tojson` without HTML escaping, `strftime_now`,
`raise_exception`, `{% generation %}`. A template that loops forever or builds a terabyte of text ends in an error.
It does so at the same point on every machine, because steps are counted, not seconds.
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

STEPS = 1 << 21  # iterations, calls and operations per rendering; reading `CHARACTERS` characters costs one more
CHARACTERS = 1 << 8
CALL = 8  # steps that a call costs
ITEM = 16  # characters that a list item counts as
LARGEST = 1 << 22  # maximum characters of a text, or items of a list, that a template may create
BITS = 1 << 12  # maximum size of an integer
WIDE = re.compile(r"\d{6}")  # a width in a format: '%999999999d' creates a gigabyte of text

MULTIPLY = {"replace", "join", "expandtabs", "translate", "indent"}
WRITE = {"string", "tojson", "join", "format", "trim", "replace", "upper", "lower", "title", "capitalize", "center"}
WRITE |= {"escape", "forceescape", "safe", "urlencode", "indent", "truncate", "striptags", "xmlattr", "wordcount"}
UNUSED = ("wordwrap", "urlize", "pprint", "filesizeformat")  # slow, and only useful for web pages

_left: ContextVar[int] = ContextVar("steps left", default=STEPS)


def render(source: str, values: Mapping[str, Any]) -> str:
    """The text that a template renders from these values, or an error."""
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
    """Count steps, and the size of the values they read."""
    size = max(map(_size, seen), default=0)
    if size > LARGEST:
        _refuse_work(f"it makes a text or list of more than {LARGEST:,} characters")
    left = _left.get() - steps - size // CHARACTERS
    if left < 0:
        _refuse_work(f"it does not end within {STEPS:,} steps")
    _left.set(left)


def _size(value: Any) -> int:
    """Size in characters; of a list, without the size of its items."""
    if isinstance(value, str):
        return len(value)
    return ITEM * len(value) if isinstance(value, list | tuple | dict | range) else 0


def _written(value: Any) -> Any:
    """Check a value before it becomes text: a list that contains another list many times is small until then."""
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
    """Refuse large numbers given to a method or filter: they may be a width or a count."""
    if any(isinstance(number, int) and abs(number) > LARGEST for number in numbers):
        _refuse_work(f"it asks for more than {LARGEST:,} of something")


def _seen(value: Any) -> Any:
    """Count a value that a template compares, slices or concatenates."""
    _spend(value)
    return value


def _walked(values: Any) -> Any:
    """Count a value that a template loops over."""
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
    """Wrap a filter or test so that its work is counted."""

    @functools.wraps(function)  # keeps the marks that tell jinja which arguments to pass
    def watched(*args: Any, **named: Any) -> Any:
        _refuse_large((*args, *named.values()))
        _spend(*args, *named.values())
        _refuse_product(name, args)
        made = function(*args, **named)
        _spend(made)
        return made

    return watched


def _refuse_product(name: str, args: tuple[Any, ...]) -> None:
    """Refuse inserting or replacing text when the result, up to both sizes multiplied, would be too large."""
    if name in WRITE:
        _written(list(args))
    if name in MULTIPLY:
        sizes = [each if isinstance(each, int) else _size(each) for each in args]
        large, second, *_ = *sorted(sizes, reverse=True), 1, 1
        _refuse_large([large * second // 16])
    if name in ("format", "strftime_now") and any(isinstance(arg, str) and WIDE.search(arg) for arg in args):
        _refuse_work("it asks for a very wide format")


class _Walks(NodeTransformer):
    """Makes jinja count what it compiles to plain Python: loops, comparisons, slices, concatenations."""

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
    """{% generation %} marks the assistant's text for training; here it is a plain block."""

    tags = {"generation"}  # noqa: RUF012 (declared by jinja)

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block's body in its own scope."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """Blocks access to unsafe attributes and changes to the values, and allows at most `STEPS` steps."""

    intercepted_binops = frozenset({"+", "*", "**", "%", "-", "/", "//"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        found: nodes.Template = _Walks(self).visit(super()._parse(source, name, filename))
        return found

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Run a binary operation unless its result would be too large."""
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
        """Run a call unless its arguments or its result are too large."""
        of = getattr(obj, "__self__", None)
        _refuse_large((*args, *named.values()))
        _spend(of, *args, *named.values(), steps=CALL)
        _refuse_product(getattr(obj, "__name__", ""), (of, *args))
        made = super().call(context, obj, *args, **named)
        _spend(made)
        return made

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` in the sandbox; a format with very wide fields is refused."""
        made = super().wrap_str_format(value)
        if made is not None:
            _refuse_product("format", (str(value.__self__),))
        return made

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join the written pieces."""
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
    """JSON as Hugging Face writes it: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format: str) -> str:
    """The current date and time in a format."""
    return datetime.datetime.now().strftime(format)
