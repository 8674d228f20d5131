"""Model: a GGUF file with its tokenizer and chat template."""

from __future__ import annotations

import functools
import itertools
import re
import weakref
from typing import TYPE_CHECKING, Any, Final

from plait import _core

if TYPE_CHECKING:
    from os import PathLike

    from plait.tokenizer import Tokenizer
    from plait.tokenizer.chat_template import ChatTemplate


_loading_order: Final[weakref.WeakKeyDictionary[_core.Adapter, int]] = weakref.WeakKeyDictionary()
_n_loaded: Final = itertools.count()
_HUB_NAME: Final = re.compile(r"hf:([^/:]+/[^/:]+)(?:[/:](.*))?", re.DOTALL)


class Model(_core.Model):  # noqa: D101
    __doc__ = _core.Model.__doc__

    if not TYPE_CHECKING:  # type checkers read the signature of _core.Model

        @functools.wraps(_core.Model.load_lora)
        def load_lora(self, *args: Any, **kwargs: Any) -> _core.Adapter:  # noqa: D102
            adapter = super().load_lora(*args, **kwargs)
            _loading_order[adapter] = next(_n_loaded)
            return adapter

    @classmethod
    def demo(cls) -> Model:
        """Open the small model inside the package, which reads short stories and answers questions about them."""
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
        packed_cache: str | PathLike[str] | bool | None = None,
    ) -> Model:
        """Open a model of the Hugging Face hub, downloading it once.

        Needs huggingface_hub (plait[hub]).

        All parts of a split model are downloaded. An interrupted download resumes, and cached files
        need no network.

        Args:
            repo: Repository, "owner/name".
            file: File name in the repository, or a glob pattern that matches one model, such as
                "*Q4_K_M*". None if the repository has only one model.
            revision: Branch, tag or commit, as in huggingface_hub.hf_hub_download().
            token: Access token, as in huggingface_hub.hf_hub_download().
            cache_dir: Directory of the cache, as in huggingface_hub.hf_hub_download().
            local_files_only: True to use only the cache, never the network.
            mmap: Map the file into memory, as for Model.
            packed_cache: Folder for reordered weights, as for Model.

        Returns:
            The model.

        Raises:
            FileNotFoundError: The repository, revision or file does not exist.
            ValueError: Several models match.
            PermissionError: The repository requires a token.
            ConnectionError: The hub cannot be reached, and the file is not in the cache.
            ModelError: The file is not a valid model; other errors are those of Model.
        """
        from plait.files.hub import fetch

        path = fetch(
            repo, file,
            revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only,
        )  # fmt: skip
        return cls(path, mmap=mmap, packed_cache=packed_cache)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the file's vocabulary, created on first use.

        Raises:
            UnsupportedError: The file has no vocabulary.
            ModelError: The vocabulary is invalid.
        """
        from plait.tokenizer import Tokenizer

        return Tokenizer(self.metadata, self.n_vocab)

    @functools.cached_property
    def chat_template(self) -> ChatTemplate:
        """The chat template of the file, created on first use. Needs jinja2 (plait[chat]).

        Raises:
            UnsupportedError: The file has no chat template.
            ModelError: The template is invalid.
        """
        from plait.tokenizer.chat_template import ChatTemplate

        return ChatTemplate(self.metadata, self.tokenizer)

    def _repr_html_(self) -> str:
        from plait.display.tables import model_html

        return model_html(self)


def loading_order(adapter: _core.Adapter) -> int:
    """Return a number that is larger than that of every adapter that was loaded earlier.

    Args:
        adapter: An adapter of Model.load_lora().
    """
    return _loading_order[adapter]


def open_named(name: str, argument: str) -> Model:
    """Return the model that an argument of a program names.

    Args:
        name: Path of a file; "hf:owner/name", "hf:owner/name/file" or "hf:owner/name:file"; or "demo" for the model
            inside the package, unless a file has that name.
        argument: Name of the argument in messages.

    Raises:
        ValueError: The name begins with hf: but has another form; other errors are those of Model.from_hub() and Model.
    """
    from pathlib import Path

    if name.startswith("hf:"):
        found = _HUB_NAME.fullmatch(name)
        if found is None:
            raise ValueError(
                f"{argument} is {name!r}; expected hf:owner/name or hf:owner/name/file"
            )
        return Model.from_hub(found[1], found[2] or None)
    if name == "demo" and not Path(name).is_file():
        return Model.demo()
    return Model(name)
