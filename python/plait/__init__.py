"""A runtime for language models: GGUF in, logits in NumPy out.

    model = plait.Model("model.gguf")
    with plait.Context(model, n_seq_max=4) as ctx:
        batch = plait.Batch()
        batch.add_sequence(model.tokenizer.encode("Once upon a time"))
        logits = ctx.decode(batch).logits    # float32 (1, n_vocab)

What is not needed to load a model and decode (tokenizers, samplers) is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plait._core import (
    Adapter,
    Batch,
    Defrag,
    Device,
    Output,
    TensorInfo,
    build_info,
    devices,
    load_control_vector,
)
from plait.context import Context, KVCache, Stats
from plait.errors import (
    BackendError,
    BatchError,
    CacheFull,
    Error,
    ModelError,
    StateError,
    UnsupportedError,
)
from plait.generate import agenerate, complete, generate
from plait.generation.events import Completion, Event
from plait.model import Model
from plait.sequence import Sequence

if TYPE_CHECKING:
    from plait import quant
    from plait.chat import Chat
    from plait.extension import SelfExtend, attention_sinks
    from plait.generation.drafts import Acceptance, DraftModel, PromptLookup
    from plait.generation.request import Request
    from plait.generation.scheduler import Scheduler
    from plait.generation.search import beam_search, best_of
    from plait.grammar import Grammar
    from plait.sampling import Sampler
    from plait.scoring import Score, embed, perplexity, score, token_logprobs
    from plait.tokenizer import Tokenizer

__all__ = [
    "Acceptance",
    "Adapter",
    "BackendError",
    "Batch",
    "BatchError",
    "CacheFull",
    "Chat",
    "Completion",
    "Context",
    "Defrag",
    "Device",
    "DraftModel",
    "Error",
    "Event",
    "Grammar",
    "KVCache",
    "Model",
    "ModelError",
    "Output",
    "PromptLookup",
    "Request",
    "Sampler",
    "Scheduler",
    "Score",
    "SelfExtend",
    "Sequence",
    "StateError",
    "Stats",
    "TensorInfo",
    "Tokenizer",
    "UnsupportedError",
    "__version__",
    "agenerate",
    "attention_sinks",
    "beam_search",
    "best_of",
    "build_info",
    "complete",
    "devices",
    "embed",
    "generate",
    "load_control_vector",
    "perplexity",
    "quant",
    "score",
    "token_logprobs",
]

__version__: str = build_info()["version"]

_LAZY = {
    "Acceptance": "plait.generation.drafts",
    "Chat": "plait.chat",
    "DraftModel": "plait.generation.drafts",
    "Grammar": "plait.grammar",
    "PromptLookup": "plait.generation.drafts",
    "Request": "plait.generation.request",
    "Sampler": "plait.sampling",
    "Scheduler": "plait.generation.scheduler",
    "Score": "plait.scoring",
    "SelfExtend": "plait.extension",
    "Tokenizer": "plait.tokenizer",
    "attention_sinks": "plait.extension",
    "beam_search": "plait.generation.search",
    "best_of": "plait.generation.search",
    "embed": "plait.scoring",
    "perplexity": "plait.scoring",
    "quant": "plait.quant",
    "score": "plait.scoring",
    "token_logprobs": "plait.scoring",
}

# Old name to new name, of names that one more minor release knows; CONTRIBUTING.md, Versions.
_RENAMED: dict[str, str] = {}


def __getattr__(name: str) -> object:
    import importlib
    import warnings

    if name in _RENAMED:
        now = f"plait.{_RENAMED[name]}"
        warnings.warn(f"plait.{name} is called {now} now", DeprecationWarning, stacklevel=2)
        found = getattr(importlib.import_module("plait"), _RENAMED[name])
    elif name in _LAZY:
        module = importlib.import_module(_LAZY[name])
        found = module if name == "quant" else getattr(module, name)
    else:
        raise AttributeError(f"module 'plait' has no attribute {name!r}")
    globals()[name] = found  # so that this is asked once
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
