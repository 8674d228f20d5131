"""Model: what `plait._core.Model` opens, with its tokenizer."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from plait import _core

if TYPE_CHECKING:
    from os import PathLike

    from plait.tokenizer import Tokenizer
    from plait.tokenizer.chat_template import ChatTemplate


class Model(_core.Model):  # noqa: D101
    __doc__ = _core.Model.__doc__

    @classmethod
    def demo(cls) -> Model:
        """The small trained model inside the package: it reads short stories and answers questions about them."""
        from pathlib import Path

        return cls(Path(__file__).parent / "demo" / "model.gguf")

    @classmethod
    def from_hub(
        cls,
        repo: str,
        file: str | None = None,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | PathLike[str] | None = None,
        local_files_only: bool = False,
        mmap: bool = False,
    ) -> Model:
        """A model of the Hugging Face hub, "owner/name"; downloaded once. Needs huggingface_hub (plait[hub]).

        `file`: its name in the repository, or a pattern that one model fits, "*Q4_K_M*"; None: the only one there is.
        Of a split model all files come. A download that broke off goes on where it stopped; what is in the cache is
        found without a network. `mmap` as for Model, the others as for huggingface_hub.hf_hub_download().

        Raises FileNotFoundError for what is not there, ValueError where several models fit, PermissionError for a
        repository that asks for a token, ConnectionError where the hub cannot be reached and the cache does not have
        the file, and what Model raises.
        """
        from plait.files.hub import fetch

        path = fetch(
            repo, file,
            revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only,
        )  # fmt: skip
        return cls(path, mmap=mmap)

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
        from plait.tokenizer.chat_template import ChatTemplate

        return ChatTemplate(self.metadata, self.tokenizer)

    def _repr_html_(self) -> str:
        from plait.display.tables import model_html

        return model_html(self)
