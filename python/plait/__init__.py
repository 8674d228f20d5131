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

from plait._core import Batch, Defrag, Device, Output, TensorInfo, build_info, devices
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
from plait.generate import Event, generate
from plait.model import Model
from plait.sequence import Sequence

if TYPE_CHECKING:
    from plait import quant
    from plait.grammar import Grammar
    from plait.sampling import Sampler
    from plait.scoring import Score, embed, perplexity, score, token_logprobs
    from plait.tokenizer import Tokenizer

__all__ = [
    "BackendError",
    "Batch",
    "BatchError",
    "CacheFull",
    "Context",
    "Defrag",
    "Device",
    "Error",
    "Event",
    "Grammar",
    "KVCache",
    "Model",
    "ModelError",
    "Output",
    "Sampler",
    "Score",
    "Sequence",
    "StateError",
    "Stats",
    "TensorInfo",
    "Tokenizer",
    "UnsupportedError",
    "__version__",
    "build_info",
    "devices",
    "embed",
    "generate",
    "perplexity",
    "quant",
    "score",
    "token_logprobs",
]

__version__: str = build_info()["version"]

_LAZY = {
    "Grammar": "plait.grammar",
    "Sampler": "plait.sampling",
    "Score": "plait.scoring",
    "Tokenizer": "plait.tokenizer",
    "embed": "plait.scoring",
    "perplexity": "plait.scoring",
    "quant": "plait.quant",
    "score": "plait.scoring",
    "token_logprobs": "plait.scoring",
}


def __getattr__(name: str) -> object:
    import importlib

    if name not in _LAZY:
        raise AttributeError(f"module 'plait' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name])
    found = module if name == "quant" else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
