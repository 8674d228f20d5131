"""ChatTemplate: renders messages to a prompt with the Jinja template of a GGUF file.

Supports the extensions of Hugging Face's apply_chat_template: raise_exception(), strftime_now(),
tojson without HTML escapes, loop controls, {% generation %}. Templates come from untrusted files.
They run in Jinja's sandbox, and every loop, call, filter and operator is charged for the text that
it may produce; a template that exceeds the limits of text or time raises ModelError.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from plait.errors import ModelError, UnsupportedError

try:
    from jinja2 import TemplateError, TemplateSyntaxError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.visitor import NodeTransformer
except ImportError as error:
    raise UnsupportedError("chat templates need jinja2: pip install 'plait[chat]'") from error

if TYPE_CHECKING:
    from plait.tokenizer import Tokenizer

KEY: Final = "tokenizer.chat_template"
_MAX_SOURCE: Final = 1 << 18  # characters of a template
_MAX_TEXT: Final = 1 << 26  # characters that a rendering may produce, with intermediate results
_MAX_SECONDS: Final = 5.0
_WIDE: Final = re.compile(r"\d{5}")  # field widths of five digits or more are refused
_MULTIPLYING: Final = {"replace", "join", "indent", "format", "%", "translate", "expandtabs"}
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
        except (RecursionError, TemplateError, SyntaxError, MemoryError) as error:
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
        """Charge the max number of characters that a function of this name can return for these operands."""
        texts, longest_two, largest = 1, [1, 1], 1
        pending = list(operands)
        while pending:
            operand = pending.pop()
            if isinstance(operand, str):
                texts += len(operand)
                longest_two = sorted([*longest_two, len(operand)])[1:]
            elif isinstance(operand, int):
                largest = max(largest, min(abs(operand), _MAX_TEXT + 1))
            elif isinstance(operand, (list, tuple, set, dict)):
                # Charged before descending, because containers can contain each other many times.
                self.charge(len(operand))
                pending += operand
                if isinstance(operand, dict):
                    pending += operand.values()
        if name in _MULTIPLYING:
            texts += longest_two[0] * longest_two[1]
        self.charge(texts * largest)


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


class _LimitLoops(NodeTransformer):
    """Passes the iterables of loops and the operands of `~` through filters that charge."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_limited", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "_concat", [], [], None, None, lineno=node.lineno)


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
        self.filters = {name: self._charged(name, f) for name, f in self.filters.items()}
        self.filters["tojson"] = self._charged("tojson", _tojson)
        self.filters["_limited"] = lambda items: _Limited(items, self.budget)
        self.filters["_concat"] = self._charged("_concat", _concat)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _LimitLoops().visit(super()._parse(source, name, filename))
        return tree

    def _charged(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def charged(*args: Any, **kwargs: Any) -> Any:
            if name == "format":
                _check_widths(args[0])
            self.budget.charge_call(name, (*args, *kwargs.values()))
            return function(*args, **kwargs)

        return charged

    def _written(self, value: Any) -> Any:
        self.budget.charge_call("", [value])
        return value

    def call(self, context: Any, callee: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(callee, "__name__", "")
        # The sandbox wraps str.format.
        held = getattr(getattr(callee, "__wrapped__", callee), "__self__", None)
        if name in ("format", "format_map"):
            _check_widths(held)
        self.budget.charge_call(name, (held, *args, *kwargs.values()))
        return super().call(context, callee, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%":
            _check_widths(left)
        if operator == "**":
            raise ModelError(f"{KEY}: the template uses the operator **, which is not allowed")
        self.budget.charge_call(operator, (left, right))
        return super().call_binop(context, operator, left, right)


def _check_widths(text: object) -> None:
    if isinstance(text, str) and _WIDE.search(text):
        raise ModelError(f"{KEY}: the template uses a field width of five or more digits")


def _concat(parts: list[Any]) -> str:
    return "".join(str(part) for part in parts)


def _raise_exception(message: object) -> None:
    raise _Rejected(str(message))


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _checked(item: object, what: str) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise TypeError(f"render: {what}: expected a mapping, got {type(item).__name__}")
    if what.startswith("message") and not isinstance(item.get("role"), str):
        raise ValueError(f'render: {what} has no "role"')
    return dict(item)
