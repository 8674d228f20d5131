"""The formats of model families: how a reply separates reasoning, tool calls and content.

A format is a generator that reads from a Reader and adds to a Reply. Text that has the marks of a
call but not its form is content.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Final

from plait.generation.messages import values
from plait.generation.messages.reader import Reader, Reply, Wait
from plait.generation.messages.values import Calls, Schemas

Block = Generator[None, None, Calls]
Blocks = Mapping[str, Callable[[Reader, "Options"], Block]]

_MAX_INNER: Final = 32  # closing marks inside the strings of a call

DSML: Final = "\uff5cDSML\uff5c"
CALLS: Final = "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>"
CALL: Final = "<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>"
CALL_SEPARATOR: Final = "<\uff5ctool\u2581sep\uff5c>"
_HARMONY: Final = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")


@dataclass(frozen=True)
class Options:
    """What a format knows beside the text.

    Attributes:
        schemas: Parameters of the tools, by name.
        reasoning: Whether the prompt has opened the reasoning.
    """

    schemas: Schemas = field(default_factory=dict)
    reasoning: bool = False


def hermes(reader: Reader, reply: Reply, options: Options) -> Wait:
    """Hermes, Qwen and GLM: <think>, and <tool_call> with JSON, XML or GLM's pairs of keys and values."""
    yield from _thinking(reader, reply, options)
    yield from _blocks(reader, reply, options, {"<tool_call>": _tool_call})


def qwen_coder(reader: Reader, reply: Reply, options: Options) -> Wait:
    """Qwen3-Coder: as hermes(), and <function=...> without <tool_call>."""
    yield from _thinking(reader, reply, options)
    blocks = {"<tool_call>": _tool_call, "<function=": _function, "</tool_call>": _nothing}
    yield from _blocks(reader, reply, options, blocks)


def llama3(reader: Reader, reply: Reply, options: Options) -> Wait:
    """Llama 3: bare JSON, <|python_tag|> with JSON or a call, or <function=...> with JSON."""
    yield from _thinking(reader, reply, options)
    yield from _bare(reader, reply, options)
    blocks = {"<|python_tag|>": _python_tag, "<function=": _function}
    yield from _blocks(reader, reply, options, blocks)


def mistral(reader: Reader, reply: Reply, options: Options) -> Wait:
    """Mistral: [THINK], and [TOOL_CALLS] with a JSON array or with NAME[ARGS]JSON."""
    yield from _thinking(reader, reply, options, "[THINK]", "[/THINK]")
    yield from _blocks(reader, reply, options, {"[TOOL_CALLS]": _mistral_calls})


def gemma(reader: Reader, reply: Reply, options: Options) -> Wait:
    """Gemma 1 to 3: Python calls or JSON in fenced code, or a bare JSON call."""
    yield from _bare(reader, reply, options)
    blocks = {
        "```tool_code": _fenced,
        "```tool_call": _fenced,
        "```json": _fenced,
        "```python": _fenced,
    }
    yield from _blocks(reader, reply, options, blocks)


def gemma4(reader: Reader, reply: Reply, options: Options) -> Wait:
    """Gemma 4 and FunctionGemma: call:NAME{...} between special tokens, and a channel for reasoning."""
    marks = ("<|channel>", "<|tool_call>", "<start_function_call>")
    if options.reasoning:
        yield from reader.until(("<channel|>",), reply.reasoning)
        reply.separate()
    while mark := (yield from reader.until(marks, reply.content)):
        if mark == "<|channel>":
            yield from reader.accept("thought")
            yield from reader.until(("<channel|>",), reply.reasoning)
            reply.separate()
            continue
        reader.record()
        modern = mark == "<|tool_call>"
        quote = '<|"|>' if modern else "<escape>"
        ends = ("<tool_call|>",) if modern else ("<end_function_call>",)
        body, _ = yield from _body(reader, ends, functools.partial(_has_odd, quote))
        _settle(reply, mark, reader, values.from_gemma(body, quote))


def _has_odd(mark: str, text: str) -> bool:
    return text.count(mark) % 2 == 1


def harmony(reader: Reader, reply: Reply, options: Options) -> Wait:
    """gpt-oss: the channel analysis is reasoning, a recipient makes a call, the rest is content."""
    del options
    mark = yield from reader.until(_HARMONY, reply.content)
    while mark is not None:
        if mark not in ("<|start|>", "<|channel|>", "<|message|>"):
            mark = yield from reader.until(_HARMONY, reply.content)
            continue
        header = [mark]
        if mark != "<|message|>":
            found = yield from reader.until(("<|message|>",), header.append)
            if found is None:
                reply.content("".join(header))
                return
        mark = yield from _harmony_message(reader, reply, "".join(header))


def _harmony_message(
    reader: Reader, reply: Reply, header: str
) -> Generator[None, None, str | None]:
    """Read the body of a message and return the mark that ends it."""
    ends = tuple(mark for mark in _HARMONY if mark != "<|message|>")
    recipient = re.search(r"\bto=([\w.:/-]+)", header)
    channel = re.search(r"<\|channel\|>\s*(\w+)", header)
    if recipient is None:
        is_reasoning = channel is not None and channel[1] == "analysis"
        mark = yield from reader.until(ends, reply.reasoning if is_reasoning else reply.content)
        if mark is not None:
            reply.separate()
        return mark
    body: list[str] = []
    mark = yield from reader.until(ends, body.append)
    text, name = "".join(body), recipient[1].removeprefix("functions.")
    try:
        reply.call(values.call(name, {"code": text} if name == "python" else values.loads(text)))
    except (ValueError, RecursionError):
        reply.content(text)
        reply.separate()
    return mark


def deepseek(reader: Reader, reply: Reply, options: Options) -> Wait:
    """DeepSeek V3, R1 and V3.2: <think>, and calls between special tokens with JSON or parameters."""
    yield from _thinking(reader, reply, options)
    blocks = {
        CALLS[0]: _nothing,
        CALLS[1]: _nothing,
        CALL[0]: _deepseek_call,
        f"<{DSML}function_calls>": _nothing,
        f"</{DSML}function_calls>": _nothing,
        f"<{DSML}invoke name=": _dsml_call,
    }
    yield from _blocks(reader, reply, options, blocks)


def lfm2(reader: Reader, reply: Reply, options: Options) -> Wait:
    """LFM2: a list of Python calls, or JSON, between <|tool_call_start|> and <|tool_call_end|>."""
    yield from _thinking(reader, reply, options)
    yield from _blocks(reader, reply, options, {"<|tool_call_start|>": _lfm2_calls})


def granite(reader: Reader, reply: Reply, options: Options) -> Wait:
    """Granite: <|tool_call|> with a JSON array, or <tool_call> with an object; <think> and <response>."""
    yield from _thinking(reader, reply, options)
    space = yield from reader.spaces()
    if (yield from reader.accept("<response>")) is None:
        reply.content(space)
    blocks = {"<|tool_call|>": _json_value, "<tool_call>": _tool_call, "</response>": _nothing}
    yield from _blocks(reader, reply, options, blocks)


def general(reader: Reader, reply: Reply, options: Options) -> Wait:
    """Other models: JSON that names a tool, bare, in fenced code or in <tool_call>."""
    yield from _thinking(reader, reply, options)
    yield from _bare(reader, reply, options)
    blocks = {"```json": _fenced, "<tool_call>": _tool_call}
    yield from _blocks(reader, reply, options, blocks)


# -- what formats share ----------------------------------------------------------------------------


def _thinking(
    reader: Reader, reply: Reply, options: Options, begin: str = "<think>", end: str = "</think>"
) -> Wait:
    """Read the reasoning at the start of a reply, if there is any."""
    space = yield from reader.spaces()
    if (yield from reader.accept(begin)) is None and not options.reasoning:
        reply.content(space)
        return
    yield from reader.until((end,), reply.reasoning)
    reply.separate()


def _blocks(reader: Reader, reply: Reply, options: Options, blocks: Blocks) -> Wait:
    """Read content and the blocks that the keys of `blocks` open."""
    while mark := (yield from reader.until(tuple(blocks), reply.content)):
        reader.record()
        calls = yield from blocks[mark](reader, options)
        _settle(reply, mark, reader, calls)


def _settle(reply: Reply, mark: str, reader: Reader, calls: Calls) -> None:
    text = reader.recorded()
    if calls is None:
        reply.content(mark + text)
    else:
        reply.separate()
        for call in calls:
            reply.call(call)


def _body(
    reader: Reader, ends: tuple[str, ...], is_inside: Callable[[str], bool]
) -> Generator[None, None, tuple[str, bool]]:
    """Read up to the first of `ends` that is not part of a value. Returns the text, and whether it has an end."""
    body = ""
    for _ in range(_MAX_INNER):
        found: list[str] = []
        mark = yield from reader.until(ends, found.append)
        body += "".join(found)
        if mark is None or not is_inside(body):
            return body, mark is not None
        body += mark
    return body, True


def _bare(reader: Reader, reply: Reply, options: Options) -> Wait:
    """Read JSON calls of known tools at the start of the content. Without tools, JSON is content."""
    if not options.schemas:
        return
    space = yield from reader.spaces()
    while (yield from reader.peek()) in tuple("{["):
        text = yield from reader.json()
        calls = values.from_json(text)
        if calls is None or any(call.name not in options.schemas for call in calls):
            reply.content(space + text)
            return
        for call in calls:
            reply.call(call)
        space = yield from reader.spaces()
        if (yield from reader.peek()) in tuple(";,"):
            yield from reader.accept(";", ",")
            space = yield from reader.spaces()
    reply.content(space)


def _nothing(reader: Reader, options: Options) -> Block:
    del reader, options
    yield from ()
    return []


def _is_inside_call(text: str) -> bool:
    """Return whether the text after <tool_call> ends inside a value, so that a closing mark is part of it."""
    start = text.lstrip()
    if start.startswith(("{", "[")):
        return values.is_quoted(text)
    if start.startswith("<function="):
        return text.rfind("<parameter=") > text.rfind("</parameter>")
    return text.rfind("<arg_value>") > text.rfind("</arg_value>")


def _tool_call(reader: Reader, options: Options) -> Block:
    body, _ = yield from _body(reader, ("</tool_call>",), _is_inside_call)
    start = body.lstrip()
    if start.startswith(("{", "[")):
        return values.from_json(body)
    if start.startswith("<function="):
        return values.from_xml(body, options.schemas)
    return values.from_glm(body, options.schemas)


def _is_inside_function(text: str) -> bool:
    if "<parameter=" in text:
        return text.rfind("<parameter=") > text.rfind("</parameter>")
    return values.is_quoted(text)


def _function(reader: Reader, options: Options) -> Block:
    """Read after <function=."""
    body, ended = yield from _body(reader, ("</function>",), _is_inside_function)
    name, _, rest = body.partition(">")
    if rest.lstrip().startswith("{"):
        try:
            return [values.call(name, rest)]
        except (ValueError, RecursionError):
            return None
    return values.from_xml(f"<function={body}</function>", options.schemas) if ended else None


def _python_tag(reader: Reader, options: Options) -> Block:
    text = yield from reader.rest()
    found = values.from_json(text)
    if found is not None:
        return found
    builtin = re.fullmatch(r"\s*(\w+)\.call(\(.*\))\s*", text, re.DOTALL)
    if builtin is not None:
        return values.from_python(builtin[1] + builtin[2], options.schemas)
    code = next((name for name in ("python", "code_interpreter") if name in options.schemas), None)
    return None if code is None or not text.strip() else [values.call(code, {"code": text})]


def _mistral_calls(reader: Reader, options: Options) -> Block:
    del options
    yield from reader.spaces()
    if (yield from reader.peek()) in ("[", "{"):
        return values.from_json((yield from reader.json()))
    name: list[str] = []
    mark = yield from reader.until(("[CALL_ID]", "[ARGS]", "{"), name.append)
    identity: list[str] = []
    if mark == "[CALL_ID]":
        mark = yield from reader.until(("[ARGS]", "{"), identity.append)
    if mark is None:
        return None
    if mark == "[ARGS]":
        yield from reader.spaces()
        if (yield from reader.peek()) != "{":
            return None
    arguments = yield from reader.json("{" if mark == "{" else "")
    try:
        given = values.loads(arguments)
        return [values.call("".join(name).strip(), given, "".join(identity).strip())]
    except (ValueError, RecursionError):
        return None


def _fenced(reader: Reader, options: Options) -> Block:
    body, ended = yield from _body(reader, ("```",), lambda text: values.is_quoted(text))
    if not ended and not body.strip():
        return None
    calls = values.from_json(body) or values.from_python(body, options.schemas)
    if calls is None or any(call.name not in options.schemas for call in calls):
        return None
    return calls


def _deepseek_call(reader: Reader, options: Options) -> Block:
    del options
    body, _ = yield from _body(reader, (CALL[1],), values.is_quoted)
    first, separator, rest = body.partition(CALL_SEPARATOR)
    if not separator:
        return None
    older = re.fullmatch(r"\s*([^\n]*?)\s*\n\s*```(?:json)?\s*(.*?)\s*(?:```)?\s*", rest, re.DOTALL)
    name, arguments = (older[1], older[2]) if older else (first.strip(), rest)
    try:
        return [values.call(name, arguments)]
    except (ValueError, RecursionError):
        return None


def _dsml_call(reader: Reader, options: Options) -> Block:
    end = f"</{DSML}invoke>"
    open_mark, close_mark = f"<{DSML}parameter", f"</{DSML}parameter>"
    body, ended = yield from _body(
        reader, (end,), lambda text: text.rfind(open_mark) > text.rfind(close_mark)
    )
    name = re.match(r'"([\w.:/-]+)"\s*>', body)
    if name is None or not ended:
        return None
    pattern = re.compile(
        rf'{open_mark} name="([^"]+)"(?: string="(true|false)")?>(.*?){close_mark}', re.DOTALL
    )
    arguments = {
        key: value if is_string == "true" else values.typed(value, None)
        for key, is_string, value in pattern.findall(body)
    }
    if not arguments and body[name.end() :].strip():
        return None
    return [values.call(name[1], arguments)]


def _lfm2_calls(reader: Reader, options: Options) -> Block:
    body, _ = yield from _body(reader, ("<|tool_call_end|>",), values.is_quoted)
    return values.from_json(body) or values.from_python(body, options.schemas)


def _json_value(reader: Reader, options: Options) -> Block:
    del options
    yield from reader.spaces()
    if (yield from reader.peek()) not in ("[", "{"):
        return None
    return values.from_json((yield from reader.json()))
