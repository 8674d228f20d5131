"""A runtime for language models: GGUF in, logits in NumPy out.

    model = plait.Model("model.gguf")
    with plait.Context(model, n_seq_max=4) as ctx:
        batch = plait.Batch()
        batch.add_sequence(model.tokenizer.encode("Once upon a time"))
        logits = ctx.decode(batch).logits    # float32 (1, n_vocab)

What is not needed to load a model and decode (tokenizers, samplers, generation) is imported when it is first used.
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
from plait._core import version as _version
from plait.cache.kv_cache import KVCache
from plait.cache.sequence import Sequence
from plait.context import Context, Stats
from plait.errors import (
    BackendError,
    BatchError,
    CacheFull,
    Error,
    ModelError,
    ReceiptError,
    StateError,
    UnsupportedError,
    VerificationError,
)
from plait.model import Model

if TYPE_CHECKING:
    from plait import figures, quant, testing
    from plait import inspect_ai as inspect_ai
    from plait import lm_eval as lm_eval
    from plait import ray as ray
    from plait.evaluation.comparison import Comparison, compare
    from plait.evaluation.divergence import KLDivergence, kl_divergence
    from plait.evaluation.embedding import Embedder, embed
    from plait.evaluation.patching import PatchSweep, patch_sweep
    from plait.evaluation.replay import verify
    from plait.evaluation.scoring import Score, perplexity, score, token_logprobs
    from plait.generation.chat import Chat
    from plait.generation.drafts import Acceptance, DraftModel, PromptLookup
    from plait.generation.engine import Engine
    from plait.generation.engine_stats import EngineStats
    from plait.generation.events import Completion, Event, Timings, Usage
    from plait.generation.generate import agenerate, complete, generate
    from plait.generation.grammar import Grammar
    from plait.generation.long_context import SelfExtend, attention_sinks
    from plait.generation.messages import Message, ToolCall, tool_schema
    from plait.generation.mtp import MTP
    from plait.generation.prefix_store import PrefixStore
    from plait.generation.request import Request
    from plait.generation.sampler import Sampler
    from plait.generation.scheduler import Scheduler
    from plait.generation.search import beam_search, best_of
    from plait.inspect.gradients import Logit, LogitDifference, LogProbability
    from plait.inspect.receipt import Receipt
    from plait.tokenizer import Tokenizer
    from plait.vision import ImageEmbeddings, Vision

__all__ = [
    "MTP",
    "Acceptance",
    "Adapter",
    "BackendError",
    "Batch",
    "BatchError",
    "CacheFull",
    "Chat",
    "Comparison",
    "Completion",
    "Context",
    "Defrag",
    "Device",
    "DraftModel",
    "Embedder",
    "Engine",
    "EngineStats",
    "Error",
    "Event",
    "Grammar",
    "ImageEmbeddings",
    "KLDivergence",
    "KVCache",
    "LogProbability",
    "Logit",
    "LogitDifference",
    "Message",
    "Model",
    "ModelError",
    "Output",
    "PatchSweep",
    "PrefixStore",
    "PromptLookup",
    "Receipt",
    "ReceiptError",
    "Request",
    "Sampler",
    "Scheduler",
    "Score",
    "SelfExtend",
    "Sequence",
    "StateError",
    "Stats",
    "TensorInfo",
    "Timings",
    "Tokenizer",
    "ToolCall",
    "UnsupportedError",
    "Usage",
    "VerificationError",
    "Vision",
    "__version__",
    "agenerate",
    "attention_sinks",
    "beam_search",
    "best_of",
    "build_info",
    "compare",
    "complete",
    "devices",
    "embed",
    "figures",
    "generate",
    "kl_divergence",
    "load_control_vector",
    "patch_sweep",
    "perplexity",
    "quant",
    "score",
    "testing",
    "token_logprobs",
    "tool_schema",
    "verify",
]

__version__: str = _version()

# Where to find the names that are imported on first use.
_MODULES = {
    "Acceptance": "generation.drafts",
    "Chat": "generation.chat",
    "Comparison": "evaluation.comparison",
    "Completion": "generation.events",
    "DraftModel": "generation.drafts",
    "Embedder": "evaluation.embedding",
    "Engine": "generation.engine",
    "EngineStats": "generation.engine_stats",
    "Event": "generation.events",
    "Grammar": "generation.grammar",
    "ImageEmbeddings": "vision",
    "KLDivergence": "evaluation.divergence",
    "LogProbability": "inspect.gradients",
    "Logit": "inspect.gradients",
    "LogitDifference": "inspect.gradients",
    "MTP": "generation.mtp",
    "Message": "generation.messages",
    "PatchSweep": "evaluation.patching",
    "PrefixStore": "generation.prefix_store",
    "PromptLookup": "generation.drafts",
    "Receipt": "inspect.receipt",
    "Request": "generation.request",
    "Sampler": "generation.sampler",
    "Scheduler": "generation.scheduler",
    "Score": "evaluation.scoring",
    "SelfExtend": "generation.long_context",
    "Timings": "generation.events",
    "Tokenizer": "tokenizer",
    "ToolCall": "generation.messages",
    "Usage": "generation.events",
    "Vision": "vision",
    "agenerate": "generation.generate",
    "attention_sinks": "generation.long_context",
    "beam_search": "generation.search",
    "best_of": "generation.search",
    "compare": "evaluation.comparison",
    "complete": "generation.generate",
    "embed": "evaluation.embedding",
    "generate": "generation.generate",
    "kl_divergence": "evaluation.divergence",
    "patch_sweep": "evaluation.patching",
    "perplexity": "evaluation.scoring",
    "score": "evaluation.scoring",
    "token_logprobs": "evaluation.scoring",
    "tool_schema": "generation.messages",
    "verify": "evaluation.replay",
}
# Public submodules that are imported on first use. `inspect_ai`, `lm_eval` and `ray` need an extra, so they are not in
# __all__.
_SUBMODULES = {"figures", "inspect_ai", "lm_eval", "quant", "ray", "testing"}
# Deprecated names and their replacements; see "Versions" in CONTRIBUTING.md.
_RENAMED: dict[str, str] = {}


def __getattr__(name: str) -> object:
    import importlib
    import warnings

    if name in _SUBMODULES:
        return importlib.import_module(f"plait.{name}")  # which also sets the attribute
    if name in _RENAMED:
        new = _RENAMED[name]
        warnings.warn(
            f"plait.{name} is deprecated; use plait.{new}", DeprecationWarning, stacklevel=2
        )
        found = getattr(importlib.import_module("plait"), new)
    elif name in _MODULES:
        found = getattr(importlib.import_module(f"plait.{_MODULES[name]}"), name)
    else:
        raise AttributeError(f"module 'plait' has no attribute {name!r}")
    globals()[name] = found  # later accesses do not come here
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
