"""render(): messages to prompt tokens, such that text of users never becomes control tokens.

Every special token that is written in a message is broken by an unused private-use character before the template is
rendered; Tokenizer.encode_marked() removes the character after it has split the prompt at special tokens. Texts without
special tokens are not changed at all, and the whole prompt is encoded at once, so tokens merge as in a plain encode.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from plait.arguments import kind
from plait.generation.messages.message import Message
from plait.generation.messages.prepare import prepared
from plait.generation.messages.tools import schemas_of

if TYPE_CHECKING:
    from plait.model import Model
    from plait.tokenizer.chat_template import ChatTemplate
    from plait.tokenizer.tokenizer import Tokenizer

_PRIVATE_USE: Final = range(0xF8FF, 0xE000, -1)
# Text at which a template splits strings, or which it replaces: content.split('</think>')
_REMOVED: Final = re.compile(r"""(?:split|partition|replace)\(\s*(['"])((?:(?!\1)[^\\])+)\1""")


def render(
    model: Model,
    messages: Iterable[Mapping[str, Any] | Message],
    tools: Iterable[Any] | None = None,
    add_generation_prompt: bool = True,
    *,
    template: str | ChatTemplate | None = None,
    placeholder: tuple[str, str, str] | None = None,
    **variables: Any,
) -> list[int]:
    """Return the prompt tokens of a conversation.

    Only the template's own text can become control tokens. Control tokens that are written in messages or tools, such
    as <|im_end|>, are encoded as ordinary text.

    Args:
        model: The model, whose tokenizer encodes the prompt.
        messages: Mappings with a "role" and usually a "content", or Messages, oldest first. The content is text or a
            list of parts of the type "text". If the template rejects the role "system", the system text is placed
            before the first user message, separated by an empty line. The role "developer" is "system" unless the
            template has it.
        tools: The tools that the model may call: JSON schemas or Python functions; see tool_schema().
        add_generation_prompt: End with the start of the assistant's reply.
        template: Text of a Jinja template, or a ChatTemplate, to use instead of that of the file.
        placeholder: Pass parts {"type": "image"} to the template. It writes the first of these texts for each, for
            which -1 stands in the result, between the tokens of the second and the third text.
        variables: More variables of the template, such as enable_thinking=False.

    Raises:
        ValueError: The template rejects the messages, or renders them to an empty text.
        TypeError: A message or a tool has the wrong type.
        UnsupportedError: There is no template.
        ModelError: The template is invalid, or does something forbidden.

    Example:
        ids = render(model, [{"role": "user", "content": "Hello"}])
    """
    from plait.tokenizer.chat_template import KEY, ChatTemplate  # imports Jinja

    if template is None:
        found = model.chat_template
    elif isinstance(template, ChatTemplate):
        found = template
    else:
        found = ChatTemplate({KEY: template}, model.tokenizer, name="template")
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise TypeError(f"render: messages: expected a list of mappings, got {kind(messages)}")
    schemas = schemas_of(tools, "render: tools")
    plain = prepared(messages, found, bool(schemas), image_parts=placeholder is not None)
    tokenizer = model.tokenizer
    image = placeholder[0] if placeholder is not None else None
    guard = _Guard(tokenizer, found.source, plain, schemas, image)
    text = render_text(
        found,
        [guard.message(message) for message in plain],
        None if schemas is None else [guard.broken(schema) for schema in schemas],
        {**variables, "add_generation_prompt": add_generation_prompt},
    )
    # Filters such as `string` and `tojson(ensure_ascii=true)` write the mark as an escape sequence.
    text = text.replace(_escaped(guard.mark), guard.mark)
    ids = _encoded(tokenizer, text, guard.mark, placeholder)
    if not ids:
        raise ValueError("render: the template renders these messages to an empty text")
    return ids


def _encoded(
    tokenizer: Tokenizer, text: str, mark: str, placeholder: tuple[str, str, str] | None
) -> list[int]:
    if placeholder is None:
        return tokenizer.encode_marked(text, mark)
    name, before, after = placeholder
    first, *rest = text.split(name)
    pieces = [first, *(after + piece for piece in rest)]
    ids: list[int] = []
    for piece in pieces[:-1]:
        ids += [*tokenizer.encode_marked(piece + before, mark), -1]
    return ids + tokenizer.encode_marked(pieces[-1], mark)


class _Guard:
    """Breaks special tokens in untrusted text by a mark.

    Control and unknown tokens, and the placeholder of images, are broken in all messages. User-defined tokens that the
    template uses, such as <tool_call>, are broken in the messages of all roles but the assistant's, whose replies
    contain them. Templates may remove these from replies, so the parts between them are guarded like strings of their
    own.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        source: str,
        messages: list[dict[str, Any]],
        tools: Any,
        image: str | None,
    ) -> None:
        control, defined = tokenizer.special_texts()
        self._replies, self._others = _texts_to_break(control, defined, source, image)
        taken = _characters(source) | _characters(json.dumps([messages, tools], default=str))
        mark = next((chr(code) for code in _PRIVATE_USE if chr(code) not in taken), None)
        if mark is None:
            raise ValueError(
                f"render: the messages contain all {len(_PRIVATE_USE)} private-use characters from U+E001 to U+F8FF; "
                "at least one must be unused; remove one of them"
            )
        self.mark = mark

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message whose special tokens are broken. The role is not changed."""
        texts = self._replies if message["role"] == "assistant" else self._others
        return {
            key: value if key == "role" else self.broken(value, texts)
            for key, value in message.items()
        }

    def broken(self, value: Any, texts: _Texts | None = None) -> Any:
        """Return a value, all of whose strings are broken."""
        texts = self._others if texts is None else texts
        if isinstance(value, str):
            return texts.broken(value, self.mark)
        if isinstance(value, Mapping):
            return {
                texts.broken(key, self.mark) if isinstance(key, str) else key: self.broken(
                    item, texts
                )
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.broken(item, texts) for item in value]
        return value


class _Texts:
    """Texts of special tokens to break, with their proper prefixes and suffixes.

    Args:
        texts: The texts.
        separators: Texts that are not broken, and that templates may remove from strings.
    """

    def __init__(self, texts: frozenset[str], separators: frozenset[str]) -> None:
        self._texts = sorted(texts, key=len, reverse=True)
        self._prefixes = {text[:n] for text in texts for n in range(1, len(text))}
        self._suffixes = {text[n:] for text in texts for n in range(1, len(text))}
        self._longest = max(map(len, texts), default=0)
        longest_first = sorted(separators, key=len, reverse=True)
        self._separators = re.compile("|".join(map(re.escape, longest_first)) or r"\Z")

    def broken(self, value: str, mark: str) -> str:
        """Return a string whose special tokens are broken by `mark`."""
        for text in self._texts:
            if text in value:
                value = value.replace(text, text[:1] + mark + text[1:])
        pieces, start = [], 0
        for separator in self._separators.finditer(value):
            pieces += [self._with_borders(value[start : separator.start()], mark), separator[0]]
            start = separator.end()
        return "".join([*pieces, self._with_borders(value[start:], mark)])

    def _with_borders(self, value: str, mark: str) -> str:
        """Mark the ends of a string that could form a token with strings to which the template joins it."""
        core = value.strip()
        lengths = range(1, min(self._longest, len(core) + 1))
        before = mark if any(core[:n] in self._suffixes for n in lengths) else ""
        after = mark if any(core[-n:] in self._prefixes for n in lengths) else ""
        return value.replace(core, before + core + after, 1) if before or after else value


@functools.lru_cache(maxsize=16)
def _texts_to_break(
    control: frozenset[str], defined: frozenset[str], source: str, image: str | None
) -> tuple[_Texts, _Texts]:
    """Return the texts to break in replies of the assistant, and those to break in everything else.

    Args:
        control: Texts of control tokens.
        defined: Texts of user-defined tokens.
        source: Text of the template.
        image: Text that the template writes for an image, which need not be a special token.
    """
    if image is not None:
        control |= {image}
    used = {text for text in defined if len(text) > 2 and text.strip() and text in source}
    removed = frozenset(text for _, text in _REMOVED.findall(source) if text.strip())
    return _Texts(control, removed | used), _Texts(control | used, removed)


def _characters(text: str) -> set[str]:
    """Return the characters of a text, and those that its escape sequences stand for."""
    return {*text, *(chr(int(code, 16)) for code in re.findall(r"\\u([0-9a-f]{4})", text))}


def _escaped(mark: str) -> str:
    return f"\\u{ord(mark):04x}"


def render_text(
    template: ChatTemplate,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    variables: dict[str, Any],
) -> str:
    """Return the prompt of a conversation as text.

    A system text that the template rejects is placed before the first user message.

    Args:
        template: The template.
        messages: The messages, with contents.
        tools: JSON schemas of the tools. None: no tools.
        variables: More variables of the template.

    Raises:
        ValueError: The template rejects the messages.
        ModelError: The template is invalid, or does something forbidden.
    """
    try:
        return template.render(messages, tools, **variables)
    except ValueError:
        merged = _system_in_user(messages)
        if merged is None:
            raise
        return template.render(merged, tools, **variables)


def _system_in_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Move the system text into the first user message. Returns None if the messages do not start with these two."""
    if [message["role"] for message in messages[:2]] != ["system", "user"]:
        return None
    content = messages[1]["content"]
    if isinstance(content, list):
        said: Any = [{"type": "text", "text": f"{messages[0]['content']}\n\n"}, *content]
    else:
        said = f"{messages[0]['content']}\n\n{content}"
    return [{**messages[1], "content": said}, *messages[2:]]
