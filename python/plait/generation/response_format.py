"""The argument `response_format`: samplers that generate text of a given form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from plait.arguments import kind
from plait.generation.sampler import Sampler

if TYPE_CHECKING:
    from plait.generation.grammar import Grammar


# Marks that end the reasoning of a reply.
_ENDS_OF_REASONING: Final = ("/think>", "/THINK]")


def formatted(
    sampler: Callable[..., int] | None, response_format: Mapping[str, Any] | Grammar | None
) -> Callable[..., int] | None:
    """Return a sampler that generates text of the given form."""
    if response_format is None or is_text(response_format):
        return sampler
    grammar = _grammar_of(response_format)
    if sampler is None:
        return Sampler(temperature=0, grammar=grammar)
    if not isinstance(sampler, Sampler):
        raise TypeError(
            f"response_format requires a plait.Sampler or None as the sampler, got {kind(sampler)}"
        )
    if sampler.grammar is not None:
        raise ValueError(
            "response_format and the grammar of the sampler exclude each other; give one of them"
        )
    return sampler.replace(grammar=grammar)


def begins_with_reasoning(sampler: Callable[..., int] | None) -> bool | None:
    """Return False if a grammar constrains a reply from its first token and has no reasoning, else None.

    Such a reply is all content or calls, also after a prompt that opens the reasoning.
    """
    grammar = sampler.grammar if isinstance(sampler, Sampler) else None
    if grammar is None or any(mark in grammar.source for mark in _ENDS_OF_REASONING):
        return None
    return False


def is_text(form: Mapping[str, Any] | Grammar | None) -> bool:
    """Return whether a response format allows any text."""
    return isinstance(form, Mapping) and form.get("type") == "text"


def _grammar_of(form: Mapping[str, Any] | Grammar) -> Grammar:
    from plait.generation.grammar import Grammar

    if isinstance(form, Grammar):
        return form
    if not isinstance(form, Mapping):
        raise TypeError(
            f"Engine: response_format: expected a mapping or a Grammar, got {kind(form)}"
        )
    name = form.get("type")
    if name == "json_object":
        return Grammar.json({"type": "object"})
    if name == "json_schema":
        inner = form.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, Mapping) else form.get("schema")
        if schema is None:
            raise ValueError(
                'Engine: response_format of type "json_schema" has no schema; expected {"type": "json_schema", '
                '"json_schema": {"schema": ...}}'
            )
        return Grammar.json(schema)
    raise ValueError(
        f'Engine: response_format has the type {name!r}; expected "text", "json_object" or "json_schema"'
    )
