"""Which format a model writes, by its chat template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from plait.generation.messages import formats
from plait.generation.messages.formats import Options
from plait.generation.messages.reader import Reader, Reply, Wait


@dataclass(frozen=True)
class Family:
    """A model family.

    Attributes:
        name: Name of the family.
        read: Reads a reply; see plait.generation.messages.formats.
        clues: Texts in the chat template, any of which identifies the family.
        marks: Marks of its format that vocabularies store as control tokens. They must be part of the text that the
            parser receives.
        opening: The end of a prompt that opens the reasoning.
    """

    name: str
    read: Callable[[Reader, Reply, Options], Wait]
    clues: tuple[str, ...]
    marks: tuple[str, ...] = ()
    opening: str = "<think>"


_TAGS: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>")

# The order matters: templates of later families may contain clues of earlier ones.
_FAMILIES: Final = (
    Family(
        "harmony", formats.harmony, ("<|channel|>",),
        ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"), "<|channel|>analysis<|message|>",
    ),
    Family(
        "gemma4", formats.gemma4, ("<|tool_call>", "<start_function_call>", "<|channel>"),
        ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<start_function_call>",
         "<end_function_call>", "<escape>"),
        "<|channel>thought",
    ),
    Family(
        "deepseek", formats.deepseek, (formats.CALLS[0], formats.DSML, formats.CALL[0]),
        (*_TAGS, *formats.CALLS, *formats.CALL, formats.CALL_SEPARATOR, formats.DSML),
    ),
    Family(
        "mistral", formats.mistral, ("[TOOL_CALLS]", "[AVAILABLE_TOOLS]"),
        ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"), "[THINK]",
    ),
    Family(
        "lfm2", formats.lfm2, ("<|tool_call_start|>", "<|tool_list_start|>"),
        (*_TAGS, "<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    Family(
        "glm", formats.hermes, ("<arg_key>",),
        (*_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    Family("qwen-coder", formats.qwen_coder, ("<function=example_function_name>", "<parameter="), _TAGS),
    Family(
        "granite", formats.granite, ("<|tool_call|>", "<|start_of_role|>"), (*_TAGS, "<|tool_call|>"),
    ),
    Family("hermes", formats.hermes, ("<tool_call>",), _TAGS),
    Family(
        "llama3", formats.llama3, ("<|python_tag|>", "<|start_header_id|>"), (*_TAGS, "<|python_tag|>"),
    ),
    Family("gemma", formats.gemma, ("<start_of_turn>",), ()),
    Family("json", formats.general, (), _TAGS),
)  # fmt: skip

BY_NAME: Final = {family.name: family for family in _FAMILIES}


def detect(template: str) -> Family:
    """Return the family of the models that have this chat template; "json" if it is unknown.

    Args:
        template: Text of the template.
    """
    return next(
        (family for family in _FAMILIES if any(clue in template for clue in family.clues)),
        BY_NAME["json"],
    )
