"""Model: what `plait._core.Model` opens, with its tokenizer."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from plait import _core

if TYPE_CHECKING:
    from plait.chat_template import ChatTemplate
    from plait.tokenizer import Tokenizer


class Model(_core.Model):  # noqa: D101
    __doc__ = _core.Model.__doc__

    @classmethod
    def demo(cls) -> Model:
        """The small trained model inside the package: it reads short stories and answers questions about them."""
        from plait.demo import MODEL

        return cls(MODEL)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Text to token ids and back, from the file's own vocabulary; made when first asked for.

        Raises UnsupportedError for a file without a vocabulary, ModelError for one whose vocabulary is wrong.
        """
        from plait.tokenizer import Tokenizer

        return Tokenizer(self.metadata, self.n_vocab)

    @functools.cached_property
    def chat_template(self) -> ChatTemplate:
        """Messages to a prompt, by the file's own template; made when first asked for. Needs jinja2 (plait[chat]).

        Raises UnsupportedError for a file without a template, ModelError for one whose template is wrong.
        """
        from plait.chat_template import ChatTemplate

        return ChatTemplate(self.metadata, self.tokenizer)

    def _repr_html_(self) -> str:
        from plait import figures

        return figures.model_html(self)
