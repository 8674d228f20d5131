"""ChatTemplate: renders messages to a prompt with the Jinja template of a GGUF file.

Supports the extensions of Hugging Face's apply_chat_template: raise_exception(), strftime_now(),
tojson without HTML escapes, loop controls, {% generation %}. Templates come from untrusted files.
They run in Jinja's sandbox with limits of text and time, beyond which ModelError is raised. Charged:
each iteration of a loop; each text that is written; calls, filters and arithmetic, for the size of
their operands and of the result that these allow, except filters that take constant time; literals
and slices, for their length; lists that are compared or hashed, for all that they contain. The size
of a value counts characters and elements, shared parts each time that they occur.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from plait.errors import ModelError, UnsupportedError

try:
    from jinja2 import TemplateError, TemplateSyntaxError, nodes, pass_context
    from jinja2.ext import Extension, loopcontrols
    from jinja2.filters import make_attrgetter
    from jinja2.parser import Parser
    from jinja2.runtime import LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace
    from jinja2.visitor import NodeTransformer
except ImportError as error:
    raise UnsupportedError("chat templates need jinja2: pip install 'plait[chat]'") from error

if TYPE_CHECKING:
    from plait.tokenizer import Tokenizer

KEY: Final = "tokenizer.chat_template"
_MAX_SOURCE: Final = 1 << 18  # characters of a template
_MAX_TEXT: Final = 1 << 26  # characters that a rendering may produce, with intermediate results
_MAX_SECONDS: Final = 5.0
_MAX_DEPTH: Final = 1000  # of lists within lists that are compared, hashed or written
_CONTAINERS: Final[tuple[type[Collection[Any]], ...]] = (
    list, tuple, dict, set, frozenset, range, type({}.keys()), type({}.values()), type({}.items()),
)  # fmt: skip
_WIDE: Final = re.compile(r"\d{5}")  # field widths of five digits or more are refused
_COMPUTED: Final = re.compile(r"\{[^{}]*\{|%(\([^)]*\))?[-#0 +.\d]*\*")  # "{:{}}" and "%*d"
# Functions whose time or result can grow with the product of the sizes of two operands.
_MULTIPLYING: Final = {
    "replace", "join", "indent", "format", "format_map", "%", "translate", "rfind", "rindex", "rsplit", "rpartition",
    "strip", "lstrip", "rstrip", "trim",
}  # fmt: skip
# Functions whose integer operands do not multiply the result. Those of all others may be counts or widths.
_VALUES: Final = {
    "", "+", "-", "/", "//", "%", "format", "format_map", "tojson", "string", "int", "float", "abs", "round", "get",
    "dict", "Namespace", "_concat",
}  # fmt: skip
# Filters that take the same time for operands of any size. Many templates count the messages once per message.
_CONSTANT: Final = ("length", "count", "first", "last", "default", "d")
# Functions that copy references to the elements of their operands. Templates extend a list for each message.
_SHALLOW: Final = ("+", "list", "reverse", "items", "get")
_COMPARING: Final = (
    "eq", "ne", "lt", "le", "gt", "ge", "==", "!=", "<", "<=", ">", ">=", "in", "equalto", "lessthan", "greaterthan",
)  # fmt: skip
# Filters whose time can grow with the square of the size of their operand.
_REFUSED_FILTERS: Final = ("pprint", "striptags", "urlize", "wordwrap")
_ROLES: Final = ("bos", "eos", "eot", "unk", "sep", "pad", "mask")


class ChatTemplate:
    """A chat template, such as `Model.chat_template`. Safe to use from several threads.

    Args:
        metadata: Maps GGUF keys to values.
        tokenizer: The model's tokenizer.
        name: The template's name in messages.

    Raises:
        UnsupportedError: There is no template.
        ModelError: The template has more than 262144 characters or is not valid Jinja.
    """

    def __init__(
        self, metadata: Mapping[str, object], tokenizer: Tokenizer, *, name: str = KEY
    ) -> None:
        self._name = name
        sources = {"default": metadata.get(KEY), "tool_use": metadata.get(f"{KEY}.tool_use")}
        if sources["default"] is None:
            raise UnsupportedError(
                f"the file has no chat template ({KEY}); pass one with template="
            )
        self._environment = _Environment()
        self._templates = {
            name: self._compile(name, source)
            for name, source in sources.items()
            if source is not None
        }
        self._source = str(sources["default"])
        self._variables = {
            f"{role}_token": tokenizer.token_bytes(token).decode("utf-8", "replace")
            for role in _ROLES
            if (token := getattr(tokenizer, role)) is not None
        }

    @property
    def source(self) -> str:
        """The text of the template."""
        return self._source

    def render(
        self,
        messages: Iterable[Mapping[str, Any]],
        tools: Iterable[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Render a conversation to a prompt.

        The result contains special tokens as text, including BOS; encode it with add_special=False.

        Args:
            messages: Mappings with a "role" and usually a "content", oldest first.
            tools: JSON schemas of the functions that the model may call. If the file has a template
                for tools, that one is used.
            add_generation_prompt: End with the start of the assistant's answer.
            variables: Additional variables of the template, such as enable_thinking=False.

        Returns:
            The prompt.

        Raises:
            ValueError: The template rejects the messages, or a message has no role.
            TypeError: A message or tool is not a mapping.
            ModelError: The template does something forbidden or takes more than 5 seconds.
        """
        checked = [_checked(message, f"message {i}") for i, message in enumerate(messages)]
        functions = tools if tools is None else [_checked(tool, "a tool") for tool in tools]
        name = "tool_use" if functions and "tool_use" in self._templates else "default"
        values = {
            **self._variables,
            "messages": checked,
            "tools": functions,
            "documents": None,
            "add_generation_prompt": bool(add_generation_prompt),
            **variables,
        }
        with self._environment.budget:
            try:
                return str(self._templates[name].render(values))
            except ModelError as error:  # a limit was exceeded
                raise ModelError(str(error).replace(KEY, self._name, 1)) from None
            except (_Rejected, TypeError, ValueError, ArithmeticError, LookupError) as error:
                raise ValueError(f"chat template: {error}") from error
            except RecursionError:
                raise ModelError(f"{self._name}: the template recurses too deeply") from None
            except TemplateError as error:
                if type(error).__name__ == "UndefinedError":
                    raise ValueError(f"chat template: {error}") from error
                raise ModelError(f"{self._name}: {error}") from error

    def __repr__(self) -> str:
        return f"<plait.ChatTemplate of {len(self._source)} characters>"

    def _compile(self, name: str, source: object) -> Any:
        key = self._name if name == "default" else f"{self._name}.{name}"
        if not isinstance(source, str):
            raise ModelError(f"{key}: expected a string, got {type(source).__name__}")
        if len(source) > _MAX_SOURCE:
            raise ModelError(
                f"{key}: the template has {len(source)} characters; the limit is {_MAX_SOURCE}"
            )
        try:
            return self._environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ModelError(f"{key}: line {error.lineno}: {error.message}") from error
        except (RecursionError, TemplateError, ValueError, SyntaxError, MemoryError) as error:
            raise ModelError(
                f"{key}: cannot be compiled: {error or 'it is nested too deeply'}"
            ) from error


class _Rejected(Exception):
    """Raised when a template calls raise_exception()."""


class _Budget(threading.local):
    """Remaining budget of text and time of a rendering, one per thread."""

    left = _MAX_TEXT
    end = float("inf")

    def __enter__(self) -> None:
        self.left = _MAX_TEXT
        self.end = time.monotonic() + _MAX_SECONDS

    def __exit__(self, *error: object) -> None:
        self.end = float("inf")

    def charge(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise ModelError(f"{KEY}: the template produces more than {_MAX_TEXT} characters")
        if time.monotonic() > self.end:
            raise ModelError(f"{KEY}: the template takes more than {_MAX_SECONDS:g} seconds")

    def charge_call(self, name: str, operands: Iterable[Any]) -> None:
        """Charge the max size of what a function of this name can return for these operands."""
        operands = list(operands)
        size = _length if name in _SHALLOW else self.size
        sizes = [size(operand) for operand in operands]
        amount = 1 + sum(sizes)
        if name in _MULTIPLYING:
            second, first = sorted([1, 1, *sizes])[-2:]
            amount += first * second
        if name not in _VALUES:
            amount *= max([1, *(abs(count) for count in operands if isinstance(count, int))])
        self.charge(amount)

    def charge_format(self, text: object) -> None:
        """Charge the sum of the widths in a format string of `%` or str.format()."""
        if not isinstance(text, str):
            return
        unescaped = text.replace("{{", "").replace("%%", "")
        if _WIDE.search(text) or _COMPUTED.search(unescaped):
            raise ModelError(
                f"{KEY}: the template uses a field width of five or more digits, or a computed one"
            )
        self.charge(sum(int(width) for width in re.findall(r"\d+", text)))

    def size(self, value: object) -> int:
        """Return the number of characters and elements in a value, and charge for the elements.

        Parts that occur several times are counted each time, as comparing or writing the value
        visits them each time.

        Raises:
            ModelError: Lists are nested too deeply, or the budget is exceeded.
        """
        size = 0
        open_containers: list[Iterator[object]] = [iter((value,))]
        while open_containers:
            for item in open_containers[-1]:
                if isinstance(item, Namespace):
                    item = item._Namespace__attrs
                if isinstance(item, (str, bytes)):
                    size += len(item)
                elif isinstance(item, _CONTAINERS):
                    self.charge(len(item))
                    size += len(item)
                    if isinstance(item, range):
                        continue
                    if len(open_containers) > _MAX_DEPTH:
                        raise ModelError(
                            f"{KEY}: the template nests lists more than {_MAX_DEPTH} deep"
                        )
                    values = item.values() if isinstance(item, dict) else ()
                    open_containers.append(itertools.chain(item, values))
                    break
            else:
                open_containers.pop()
        return size

    def limited(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items, and charge the size of each."""
        for item in items:
            self.charge(1 + self.size(item))
            yield item


def _length(value: object) -> int:
    return len(value) if isinstance(value, Collection) else 0


class _Limited:
    """An iterable that charges for each iteration."""

    def __init__(self, items: Iterable[Any], budget: _Budget) -> None:
        self._items = items
        self._purse = budget

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._purse.charge(1)
            yield item


class _Charging(NodeTransformer):
    """Passes loops, literals, slices, comparisons and the operands of `~` through filters that charge."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered("_limited", node.iter)
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        # Unlike TemplateData, an expression is passed to `finalize`, which charges.
        return nodes.MarkSafeIfAutoescape(nodes.Const(node.data), lineno=node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered("_concat", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered("_compared", node.expr)
        for operand in node.ops:
            name = "_searched" if operand.op in ("in", "notin") else "_compared"
            operand.expr = _filtered(name, operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered("_built", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered("_built", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered("_built", node) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _filtered("_compared", pair.key)
        return _filtered("_built", node)


def _filtered(name: str, node: Any) -> nodes.Expr:
    if isinstance(node, nodes.Const):
        return node
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """{% generation %}, which marks the assistant's text for training. Renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%", "//", "/", "-"])

    def __init__(self) -> None:
        self.budget = _Budget()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _Generation],
            finalize=self._written,
            optimized=False,  # the optimizer would evaluate constants without charging for them
            cache_size=0,
        )
        self.globals = {
            name: self.globals[name] for name in ("range", "dict", "namespace", "joiner")
        }
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        filters: dict[str, Callable[..., Any]] = {
            **self.filters,
            "tojson": self._tojson,
            "sum": self._sum,
            "_concat": _concat,
        }
        self.filters = {
            name: self._charged(name, function)
            for name, function in filters.items()
            if name not in _REFUSED_FILTERS
        }
        self.filters["_limited"] = lambda items: _Limited(items, self.budget)
        self.filters["_built"] = self._built
        self.filters["_compared"] = self._compared
        self.filters["_searched"] = self._searched
        for name in _COMPARING:
            self.tests[name] = self._charged("", cast(Callable[..., Any], self.tests[name]))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Charging().visit(super()._parse(source, name, filename))
        return tree

    def _charged(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def charged(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self._limited(name, args, kwargs)
            if name == "format":
                self.budget.charge_format(args[0])
            operands = () if name in _CONSTANT else (*args, *kwargs.values())
            self.budget.charge_call(name, operands)
            return function(*args, **kwargs)

        return charged

    def _limited(
        self, name: str, args: Iterable[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Replace iterators among arguments by ones that charge; join gets lists, which have sizes."""

        def limited(value: Any) -> Any:
            if not isinstance(value, Iterator) or isinstance(value, LoopContext):
                return value
            items = self.budget.limited(value)
            return list(items) if name == "join" else items

        return tuple(map(limited, args)), {key: limited(value) for key, value in kwargs.items()}

    @pass_context  # calls that depend on the context are not evaluated at compile time
    def _written(self, context: Any, value: Any) -> Any:
        self.budget.charge_call("", [value])
        return value

    def _built(self, value: Any) -> Any:
        self.budget.charge(len(value) if isinstance(value, Collection) else 1)
        return value

    def _compared(self, value: Any) -> Any:
        if isinstance(value, _CONTAINERS):
            self.budget.charge(self.budget.size(value))
        elif isinstance(value, Iterator):
            (value,), _ = self._limited("", [value], {})
        return value

    def _searched(self, value: Any) -> Any:
        # In a mapping, `in` hashes the key and compares nothing else.
        return value if isinstance(value, dict) else self._compared(value)

    def _sum(self, items: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
        if attribute is not None:
            items = map(make_attrgetter(self, attribute), items)
        if isinstance(start, (int, float)):
            return sum(items, start)
        # Each addition of lists copies the sum so far, which is charged.
        return functools.reduce(lambda a, b: self.call_binop(None, "+", a, b), items, start)

    def _tojson(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if isinstance(indent, int):
            self.budget.charge(indent)
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return "".join(self.budget.limited(encoder.iterencode(value)))

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(obj, self._compared(argument))

    def call(self, context: Any, callee: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(callee, "__name__", "")
        # The sandbox wraps str.format.
        held = getattr(getattr(callee, "__wrapped__", callee), "__self__", None)
        args, kwargs = self._limited(name, args, kwargs)
        if name in ("format", "format_map"):
            self.budget.charge_format(held)
        if name == "get" and args:
            self._compared(args[0])  # which is hashed
        if name in ("encode", "decode") and (args or kwargs):
            # Some codecs take time that grows with the square of the length.
            raise ModelError(
                f"{KEY}: the template calls {name}() with arguments, which is not allowed"
            )
        self.budget.charge_call(name, (held, *args, *kwargs.values()))
        return super().call(context, callee, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%":
            self.budget.charge_format(left)
        if operator == "**":
            raise ModelError(f"{KEY}: the template uses the operator **, which is not allowed")
        self.budget.charge_call(operator, (left, right))
        return super().call_binop(context, operator, left, right)


def _concat(parts: list[Any]) -> str:
    return "".join(str(part) for part in parts)


def _raise_exception(message: object) -> None:
    raise _Rejected(str(message))


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _checked(item: object, what: str) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise TypeError(f"render: {what}: expected a mapping, got {type(item).__name__}")
    if what.startswith("message") and not isinstance(item.get("role"), str):
        raise ValueError(f'render: {what} has no "role"')
    return dict(item)
