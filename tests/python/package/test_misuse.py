"""Every public call refuses arguments that it does not accept, by an error that names the argument.

The tables below hold one valid call of each public function, class and method, and the kind of each argument. Each
argument in turn is replaced by values that another kind would accept. Values outside `ACCEPTED` of its kind must raise
one of `ERRORS` with the name of the argument in the message; the rest may not raise anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import plait
import pytest
from python.drive import batch, feed
from python.package.test_signatures import public_callables
from python.vision import towers

ERRORS = (TypeError, ValueError, IndexError, KeyError, plait.Error)
# What the arguments of these functions are about.
VERDICTS = {"assert_greedy": AssertionError, "assert_logits_close": AssertionError}
RESULTS = {
    "Acceptance",
    "Attention",
    "Completion",
    "EngineStats",
    "Event",
    "ImageEmbeddings",
    "LogitLens",
    "Message",
    "ImportanceMatrix",
    "Quantized",
    "Request",
    "Comparison",
    "KLDivergence",
    "PatchSweep",
    "Score",
    "Timings",
    "ToolCall",
    "Usage",
}
# What only other parts of the package call; capture() takes any number of names and has a test of its own.
SKIPPED = {
    "Context.capture",
    "Context.graph_nodes", "KVCache.check_named", "Request.advance", "Request.begin", "Request.end",
    "Request.flush", "Sampler.replace", "Sampler.acquire",
    "Sampler.bind", "Sampler.release", "Snapshot", "Model.from_hub", "DraftModel.propose",
    "PromptLookup.propose", "DraftModel.release", "PromptLookup.release",
    "MTP.attach", "MTP.observe", "MTP.propose", "MTP.release",
    "Receipt", "Tokenizer.encode_marked", "Tokenizer.special_texts",
}  # fmt: skip


class Stranger:
    """An object of no kind."""

    def __repr__(self) -> str:
        return "<stranger>"


PROBES: dict[str, Any] = {
    "stranger": Stranger(),
    "none": None,
    "str": "no such thing",
    "bytes": b"abc",
    "true": True,
    "float": 3.7,
    "nan": float("nan"),
    "infinity": float("inf"),
    "np.int64": np.int64(1),
    "np.float32": np.float32(0.5),
    "np.bool": np.bool_(True),
    "negative": -1,
    "huge": 10**30,
    "list of strangers": [Stranger()],
    "array of floats": np.array([0.5, 1.5]),
    "lambda": lambda *a, **k: None,
}
NUMBERS = {"float", "np.int64", "np.float32", "true", "np.bool"}
# The probes that each kind of argument may accept. They may still be refused, by an error that names the argument.
ACCEPTED = {
    "int": {"huge", "true", "np.int64", "np.bool"},
    "any int": {"true", "np.int64", "np.bool", "negative", "huge"},
    "any int or none": {"true", "np.int64", "np.bool", "negative", "huge", "none"},
    "int or none": {"huge", "true", "np.int64", "np.bool", "none"},
    "float": {*NUMBERS, "negative", "huge"},
    "float or none": {*NUMBERS, "negative", "huge", "none"},
    "bool": {"true", "np.bool"},
    "bool or none": {"true", "np.bool", "none"},
    "flag or auto": {"true", "np.bool"},
    "object or true": {"true"},
    "str": {"str"},
    "str or none": {"str", "none"},
    "path": {"str", "bytes"},
    "folder or none": {"str", "bytes", "true", "none"},
    "model": set(),
    "context": set(),
    "callable": {"lambda"},
    "callable or none": {"none", "lambda"},
    "progress": {"none", "lambda", "true", "np.bool"},
    "seq": {"true", "np.int64", "np.bool"},
    "key": {"true", "np.int64", "np.bool"},
    "key or none": {"true", "np.int64", "np.bool", "none"},
    "batch": set(),
    "ids": set(),
    "prompt": {"str", "array of floats"} - {"array of floats"},
    "text": {"str"},
    "text or none": {"str", "none"},
    "stop": {"str", "true", "np.int64", "np.bool"},
    "draft": {"none"},
    "object": set(),
    "object or none": {"none"},
    "floats or none": {"none", "array of floats"},
    "logits": set(),
    "mask": set(),
    "pos": {"none", "true", "np.int64", "np.bool"},
    "positions": {"np.int64"},
    "anything": set(PROBES),
}  # fmt: skip


@dataclass
class Call:
    """A valid call: the arguments by name, the kind of each, and other names that messages may use for them."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    kinds: dict[str, str]
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass
class Room:
    """The objects that the calls use; made anew for each function."""

    model: plait.Model
    ctx: plait.Context
    seq: plait.Sequence
    batch: plait.Batch
    folder: Path


@pytest.fixture
def room(tiny, tmp_path) -> Iterator[Room]:
    with plait.Context(tiny, n_ctx=32, n_seq_max=3) as ctx, ctx.sequence() as seq:
        feed(ctx, [5, 6, 7, 8], seq)
        yield Room(tiny, ctx, seq, batch(([5], seq)), tmp_path)


GENERATE = {
    "model": "model", "prompts": "prompt", "max_tokens": "int", "sampler": "callable or none", "n": "int",
    "stop": "stop", "seed": "int or none", "top_logprobs": "int", "draft": "draft",
    "prefixes": "object or none", "add_special": "bool", "parse_special": "bool", "progress": "progress",
    "top": "int or none",
}  # fmt: skip
PROMPT_NAMES = {"prompts": ("prompt",), "prompt": ("prompt",)}
CONTEXT = {
    "model": "model", "n_ctx": "int or none", "n_seq_max": "int", "kv": "str", "kv_cells": "int or none",
    "type_k": "str", "type_v": "str", "n_batch": "int", "n_ubatch": "int", "backend": "str",
    "n_gpu_layers": "int or none", "split": "floats or none", "layers": "object or none", "threads": "int or none",
    "isa": "str or none",
    "flash_attention": "flag or auto", "embeddings": "bool", "pooling": "str", "causal": "bool or none",
    "graph_reuse": "bool", "fuse": "bool", "invariant": "bool", "swa_full": "bool",
    "defrag_threshold": "float or none",
}  # fmt: skip
SCORE = {"add_special": "bool", "parse_special": "bool"}
ENGINE = {
    "prompt": "prompt", "max_tokens": "int or none", "sampler": "callable or none", "stop": "stop",
    "seed": "int or none", "sample": "any int", "top_logprobs": "int", "response_format": "object or none",
    "tools": "object or none", "tool_choice": "str", "template": "str or none", "variables": "object or none",
    "priority": "any int", "timeout": "float or none", "draft": "draft", "add_special": "bool", "parse_special": "bool",
}  # fmt: skip


def saved_chat(room: Room, template: str):
    path = room.folder / "chat.json"
    with plait.Chat(room.model, template=template) as chat:
        chat.save(path)
    return path


def calls(room: Room) -> dict[str, Call]:
    """Return a valid call of every public function, class and method that takes arguments."""
    m, ctx, kv, seq = room.model, room.ctx, room.ctx.kv, room.seq
    row, ids = np.zeros(m.n_vocab, np.float32), [5, 6]
    saved, state = room.folder / "saved", kv.to_bytes(seq)
    receipt = room.folder / "run.json"
    with ctx.record() as recorded:
        ctx.encode(room.batch)
    recorded.save(receipt)
    kv.save(saved, seq)
    sampler, tokenizer, chat_ctx = plait.Sampler(seed=1), m.tokenizer, plait.Context(m, n_ctx=32)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    chat = plait.Chat(chat_ctx, template=template, max_tokens=2)
    scheduler = plait.Scheduler(plait.Context(m, n_ctx=32, n_seq_max=2))
    engine, embedder = plait.Engine(m, n_ctx=32), plait.Embedder(m)
    asked = {"prompt": ids, "max_tokens": 2}
    lens, view = plait.figures.logit_lens, plait.figures.attention
    span = {"seq": "seq", "p0": "int", "p1": "int or none"}
    draw = {"logits_row": "logits", "seq": "key"}
    text_call = {"model": "model", "text": "text"}
    vector = np.zeros((m.n_layer, m.n_embd), np.float32)
    encoder = towers.write(room.folder, "qwen2vl")
    tables = {
        "Batch.add": (plait.Batch().add, {"token": 5, "pos": 0, "seq": 0, "logits": True},
                      {"token": "any int", "pos": "pos", "seq": "seq", "logits": "bool"}),
        "Batch.add_sequence": (plait.Batch().add_sequence, {"tokens": ids, "seq": 0, "pos": 0, "logits": "all"},
                               {"tokens": "ids", "seq": "seq", "pos": "pos", "logits": "mask"}),
        "Batch.add_embeddings": (plait.Batch().add_embeddings,
                                 {"array": np.zeros((1, 8), np.float32), "seq": 0, "pos": 0, "logits": "all"},
                                 {"array": "logits", "seq": "seq", "pos": "pos", "logits": "mask",
                                  "both_directions": "bool"}),
        "Batch.from_arrays": (plait.Batch.from_arrays,
                              {"tokens": [5], "positions": [0], "seq_ids": [1], "logits": [True]},
                              {"tokens": "ids", "positions": "object or none", "seq_ids": "object or none",
                               "logits": "mask"}),
        "Chat": (lambda **k: plait.Chat(**k).close(), {"model": m, "template": template},
                 {"model": "model", "system": "str or none", "tools": "object or none", "full": "str",
                  "max_tokens": "int", "sampler": "callable or none", "stop": "stop", "template": "str or none",
                  "vision": "object or none"}),
        "Chat.say": (lambda **k: (chat.messages.clear(), chat.say(**k)), {"text": "a"},
                     {"text": "str or none", "max_tokens": "int or none", "response_format": "object or none",
                      "tool_choice": "str"}),
        "Chat.run": (lambda **k: (chat.messages.clear(), chat.run(**k)), {"text": "a"},
                     {"text": "str or none", "max_rounds": "int", "max_tokens": "int or none"}),
        "Chat.save": (chat.save, {"path": room.folder / "saved.json"}, {"path": "path"}),
        "Chat.load": (lambda **k: plait.Chat.load(**k).close(), {"path": saved_chat(room, template), "model": m},
                      {"path": "path", "model": "model", "tools": "object or none",
                       "sampler": "callable or none", "vision": "object or none"}),
        "Chat.stream": (lambda **k: (chat.messages.clear(), list(chat.stream(**k))), {"text": "a"},
                        {"text": "str or none", "max_tokens": "int or none", "response_format": "object or none",
                         "tool_choice": "str"}),
        "Context": (lambda **k: plait.Context(**k).close(), {"model": m, "n_ctx": 8}, CONTEXT),
        "Context.decode": (ctx.decode, {"batch": room.batch}, {"batch": "batch"}),
        "Context.encode": (ctx.encode, {"batch": room.batch}, {"batch": "batch"}),
        "Context.edit": (ctx.edit, {"name": "l_out.0", "what": np.zeros(m.n_embd), "mode": "add"},
                         {"name": "str", "what": "anything", "mode": "str", "seq": "key or none", "positions": "pos"}),
        "Context.gradients": (lambda **k: ctx.gradients("l_out.0", **k), {"of": plait.Logit(5)}, {"of": "callable"}),
        "Context.graph": (ctx.graph, {"n_tokens": 1},
                          {"n_tokens": "int", "n_seqs": "int", "n_outputs": "int", "embeddings": "bool",
                           "encode": "bool"}),
        "Context.set_control_vector": (ctx.set_control_vector, {"vector": vector},
                                       {"vector": "object or none", "first_layer": "int",
                                        "last_layer": "int or none", "seq": "key or none"}),
        "Context.set_lora": (ctx.set_lora, {"adapters": None}, {"adapters": "object or none", "seq": "key or none"}),
        "Context.value_shape": (ctx.value_shape, {"name": "l_out.0"}, {"name": "str"}),
        "DraftModel": (plait.DraftModel, {"model": m}, {"model": "model", "n": "int", "p_min": "float"}),
        "DraftModel.attach": (plait.DraftModel(m).attach, {"ctx": ctx}, {"ctx": "context"}),
        "Embedder": (plait.Embedder, {"model": m},
                     {"model": "model", "normalize": "bool", "pooling": "str", "truncate": "bool",
                      "n_ctx": "int or none"}),
        "Embedder.embed": (embedder.embed, {"texts": [ids]}, {"texts": "prompt", "progress": "progress"} | SCORE),
        "Embedder.rerank": (embedder.rerank, {"query": "a", "documents": ["b"]},
                            {"query": "str", "documents": "object", "progress": "progress",
                             "instruction": "str or none"}),
        "Engine": (lambda **k: plait.Engine(**k).close(), {"model": m, "n_ctx": 32},
                   {"model": "model", "n_seq_max": "int", "prefixes": "bool or none", "n_ctx": "int or none",
                    "max_queued": "int", "chunk": "int or none", "patience": "int", "vision": "object or none"}),
        "Engine.complete": (lambda **k: asyncio.run(engine.complete(**k)), asked, ENGINE),
        "Engine.complete_sync": (engine.complete_sync, asked, ENGINE),
        "Engine.stream": (lambda **k: asyncio.run(_listed(engine.stream(**k))), asked, ENGINE),
        "Engine.stream_sync": (lambda **k: list(engine.stream_sync(**k)), asked, ENGINE),
        "Grammar": (plait.Grammar, {"source": plait.Grammar.regex("a").source}, {"source": "str"}),
        "Grammar.gbnf": (plait.Grammar.gbnf, {"rules": 'root ::= "a"'}, {"rules": "str"}),
        "Grammar.json": (plait.Grammar.json, {"schema": {}}, {"schema": "object or true"}),
        "Grammar.lark": (plait.Grammar.lark, {"rules": 'start: "a"'}, {"rules": "str"}),
        "Grammar.of": (plait.Grammar.of, {"grammar": "a"}, {"grammar": "text"}),
        "Grammar.regex": (plait.Grammar.regex, {"pattern": "a"}, {"pattern": "text"}),
        "KVCache": (plait.KVCache, {"context": ctx}, {"context": "context"}),
        "KVCache.copy_to": (kv.copy_to, {"other": ctx}, {"other": "context"}),
        "KVCache.defrag": (kv.defrag, {}, {"max_moves": "int or none"}),
        "KVCache.export": (kv.export, {"path": room.folder / "a.npz", "seq": seq}, {"path": "str", "seq": "seq"}),
        "KVCache.from_bytes": (kv.from_bytes, {"data": state, "seq": seq}, {"data": "object", "seq": "key or none"}),
        "KVCache.keys": (kv.keys, {"layer": 0, "seq": seq}, {"layer": "int", "seq": "seq"}),
        "KVCache.values": (kv.values, {"layer": 0, "seq": seq}, {"layer": "int", "seq": "seq"}),
        "KVCache.load": (kv.load, {"path": saved, "seq": seq}, {"path": "path", "seq": "key or none"}),
        "KVCache.save": (kv.save, {"path": saved, "seq": seq}, {"path": "path", "seq": "key or none"}),
        "KVCache.to_bytes": (kv.to_bytes, {"seq": seq}, {"seq": "key or none"}),
        "KVCache.seq_add": (kv.seq_add, {"seq": seq, "p0": 2, "p1": None, "delta": 1}, span | {"delta": "any int"}),
        "KVCache.seq_div": (kv.seq_div, {"seq": seq, "p0": 2, "p1": None, "divisor": 1}, span | {"divisor": "int"}),
        "KVCache.seq_cp": (kv.seq_cp, {"src": seq, "dst": 2, "p0": 0, "p1": 1},
                           {"src": "seq", "dst": "seq", "p0": "int", "p1": "int or none"}),
        "KVCache.seq_keep": (kv.seq_keep, {"seq": seq}, {"seq": "seq"}),
        "KVCache.seq_len": (kv.seq_len, {"seq": seq}, {"seq": "seq"}),
        "KVCache.seq_pos_max": (kv.seq_pos_max, {"seq": seq}, {"seq": "seq"}),
        "KVCache.seq_pos_min": (kv.seq_pos_min, {"seq": seq}, {"seq": "seq"}),
        "KVCache.seq_rewind": (kv.seq_rewind, {"seq": seq, "pos": 3}, {"seq": "seq", "pos": "int"}),
        "KVCache.seq_rm": (kv.seq_rm, {"seq": seq, "p0": 3, "p1": None}, span),
        "KVCache.evict": (kv.evict, {"seq": seq, "positions": 3}, {"seq": "seq", "positions": "positions"}),
        "KVCache.write": (kv.write, {"seq": seq, "layer": 0, "positions": 3, "keys": kv.keys(0, seq)[3:4]},
                          {"seq": "seq", "layer": "int", "positions": "int", "keys": "object or none",
                           "values": "object or none"}),
        "KVCache.plot": (kv.plot, {}, {"ax": "object or none"}),
        "Model": (plait.Model, {"path": m.path}, {"path": "path", "mmap": "bool", "packed_cache": "folder or none"}),
        "Model.load_lora": (m.load_lora, {"path": "none"}, {"path": "path", "rank_stabilized": "bool or none"}),
        "MTP": (plait.MTP, {}, {"n": "int", "p_min": "float", "pauses": "bool"}),
        "Model.tensor_rows": (m.tensor_rows, {"name": "output.weight", "rows": ids}, {"name": "str", "rows": "ids"}),
        "Model.tensor": (m.tensor, {"name": "output.weight"}, {"name": "str"}),
        "LogProbability": (plait.LogProbability, {"token": 5}, {"token": "int", "position": "any int"}),
        "Logit": (plait.Logit, {"token": 5}, {"token": "int", "position": "any int"}),
        "LogitDifference": (plait.LogitDifference, {"a": 5, "b": 6},
                            {"a": "int", "b": "int", "position": "any int"}),
        "PromptLookup": (plait.PromptLookup, {}, {"n": "int", "max_ngram": "int", "min_ngram": "int"}),
        "PromptLookup.attach": (plait.PromptLookup().attach, {"ctx": ctx}, {"ctx": "anything"}),
        "Sampler": (plait.Sampler, {}, {
            **dict.fromkeys(inspect.signature(plait.Sampler).parameters, "float"), "top_k": "int",
            "penalty_last_n": "int or none", "dry_allowed_length": "int", "dry_last_n": "int or none",
            "dry_breakers": "object", "logit_bias": "object or none", "banned": "object", "allowed": "object or none",
            "forced": "object", "order": "object or none", "grammar": "str or none", "tokenizer": "anything",
            "seed": "int or none"}),
        "Sampler.accept": (sampler.accept, {"seq": 0, "tokens": ids}, {"seq": "key", "tokens": "ids"}),
        "Sampler.probabilities": (sampler.probabilities, {"logits_row": row}, draw),
        "Sampler.reset": (sampler.reset, {"seq": 0}, {"seq": "key or none"}),
        "Sampler.sample": (sampler.sample, {"logits": row[None], "seqs": [0]}, {"logits": "logits", "seqs": "ids"}),
        "Sampler.start": (sampler.start, {"seq": 0, "tokens": ids}, {"seq": "key", "tokens": "ids"}),
        "Sampler.tokens": (sampler.tokens, {"seq": 0}, {"seq": "key"}),
        "Scheduler": (lambda **k: plait.Scheduler(**k).close(), {"ctx": ctx},
                      {"ctx": "context", "chunk": "int or none", "patience": "int", "share_prefixes": "bool",
                       "keep_prefixes": "bool", "live": "bool", "prefixes": "object or none"}),
        "Scheduler.fail": (scheduler.fail, {"error": ValueError("a")}, {"error": "object"}),
        "Scheduler.cancel": (scheduler.cancel, {"request": scheduler.submit(ids)}, {"request": "object"}),
        "Scheduler.submit": (scheduler.submit, {"prompt": ids}, {
            "prompt": "prompt", "max_tokens": "int", "sampler": "callable or none", "stop": "stop",
            "priority": "any int", "seed": "int or none", "top_logprobs": "int", "timeout": "float or none",
            "draft": "draft", "index": "any int or none", "sample": "any int", "key": "key or none",
            "add_special": "bool", "parse_special": "bool", "owner": "anything", "since": "float or none",
            "shown": "object",
            "top": "int or none"}),
        "PrefixStore": (plait.PrefixStore, {"path": room.folder / "store"}, {"path": "path", "max_bytes": "int"}),
        "SelfExtend": (plait.SelfExtend, {"ctx": ctx, "seq": seq},
                       {"ctx": "context", "seq": "object", "group": "int", "width": "int"}),
        "Sequence": (lambda **k: plait.Sequence(**k).close(), {"context": ctx}, {"context": "context"}),
        "Sequence.belongs_to": (seq.belongs_to, {"context": ctx}, {"context": "context"}),
        "Sequence.fork": (lambda **k: seq.fork(**k).close(), {"upto": 2}, {"upto": "int or none"}),
        "Sequence.rewind": (seq.rewind, {"n": 4}, {"n": "int"}),
        "Sequence.shift": (seq.shift, {"keep": 1, "discard": 0}, {"keep": "int", "discard": "int"}),
        "Sequence.truncate": (seq.truncate, {"n": 4}, {"n": "int"}),
        "Stats": (plait.Stats, {"context": ctx}, {"context": "context"}),
        "Stats.plot": (ctx.stats.plot, {}, {"ax": "object or none"}),
        "Tokenizer": (plait.Tokenizer, {"metadata": m.metadata}, {"metadata": "object", "n_vocab": "int or none"}),
        "Tokenizer.decode": (tokenizer.decode, {"ids": ids},
                             {"ids": "ids", "skip_special": "bool", "clean_up": "bool or none"}),
        "Tokenizer.encode": (tokenizer.encode, {"text": "a"},
                             {"text": "str", "add_special": "bool", "parse_special": "bool"}),
        "Tokenizer.from_gguf": (plait.Tokenizer.from_gguf, {"path": m.path}, {"path": "path"}),
        "Tokenizer.is_eog": (tokenizer.is_eog, {"token": 5}, {"token": "any int"}),
        "Tokenizer.stream": (tokenizer.stream, {},
                             {"skip_special": "bool", "clean_up": "bool or none", "continuing": "bool",
                              "shown": "object"}),
        "Tokenizer.token_bytes": (tokenizer.token_bytes, {"token": 5}, {"token": "int"}),
        "Tokenizer.token_id": (tokenizer.token_id, {"text": "a"}, {"text": "str"}),
        "Vision": (lambda **k: plait.Vision(**k).close(), {"path": encoder},
                   {"path": "path", "min_pixels": "int or none", "max_pixels": "int or none",
                    "max_image_pixels": "int", "n_cached": "int",
                    "mmap": "bool", "backend": "str", "threads": "int or none"}),
        "Vision.encode": (plait.Vision(encoder).encode, {"image": np.zeros((9, 9, 3), np.uint8)}, {"image": "path"}),
        "tool_schema": (plait.tool_schema, {"function": plait.complete}, {"function": "callable"}),
        "agenerate": (lambda **k: asyncio.run(_listed(plait.agenerate(**k))), {"model": m, "prompts": [ids]},
                      GENERATE),
        "attention_sinks": (plait.attention_sinks, {"seq": seq, "max_length": 20},
                            {"seq": "object", "max_length": "int", "sinks": "int", "discard": "int or none"}),
        "beam_search": (plait.beam_search, {"model": m, "prompt": ids, "max_tokens": 2},
                        {"model": "model", "prompt": "prompt", "width": "int", "max_tokens": "int",
                         "length_penalty": "float", "stop": "stop"} | SCORE),
        "best_of": (plait.best_of, {"model": m, "prompts": [ids], "n": 1, "max_tokens": 2}, GENERATE),
        "complete": (plait.complete, {"model": m, "prompts": [ids], "max_tokens": 2}, GENERATE),
        "generate": (lambda **k: list(plait.generate(**k)), {"model": m, "prompts": [ids], "max_tokens": 2},
                     GENERATE),
        "embed": (plait.embed, {"model": m, "texts": [ids]},
                  {"model": "model", "texts": "prompt", "pooling": "str", "normalize": "bool", "truncate": "bool",
                   "progress": "progress"}
                  | SCORE),
        "load_control_vector": (plait.load_control_vector, {"path": "none"}, {"path": "path"}),
        "patch_sweep": (plait.patch_sweep, {"model": m, "clean": ids, "corrupted": ids[::-1]},
                        SCORE | {"model": "model", "clean": "text", "corrupted": "text", "values": "str",
                                 "layers": "object or none", "positions": "object or none",
                                 "metric": "callable or none", "progress": "progress"}),
        "perplexity": (plait.perplexity, text_call | {"model": m, "text": ids},
                       text_call | SCORE | {"window": "int or none", "stride": "int or none"}),
        "compare": (plait.compare, {"ctx_a": ctx, "ctx_b": ctx, "text": ids},
                    {"ctx_a": "context", "ctx_b": "context", "text": "text"}),
        "kl_divergence": (plait.kl_divergence, {"reference": m, "candidate": m, "text": ids},
                          text_call | SCORE | {"reference": "model", "candidate": "model", "window": "int or none",
                                       "stride": "int or none", "progress": "progress"}),
        "assert_close_models": (plait.testing.assert_close_models, {"a": m, "b": m},
                                {"a": "model", "b": "model", "kl": "float", "top1": "float", "text": "text or none"}),
        "token_logprobs": (plait.token_logprobs, {"model": m, "text": ids},
                           text_call | SCORE | {"window": "int or none", "stride": "int or none",
                                                "top_logprobs": "int", "progress": "progress",
                                                "top": "int or none"}),
        "score": (plait.score, {"model": m, "context": ids, "continuations": [ids]},
                  {"model": "model", "context": "text", "continuations": "object", "top_logprobs": "int",
                   "prefixes": "object or none", "top": "int or none", "receipt": "folder or none"} | SCORE),
        "verify": (plait.verify, {"receipt": receipt, "model": m},
                   {"receipt": "path", "model": "model", "adapters": "object", "progress": "progress"}),
        "Receipt.save": (plait.Receipt.load(receipt).save, {"path": receipt}, {"path": "path"}),
        "Receipt.load": (plait.Receipt.load, {"path": receipt}, {"path": "path"}),
        "dequantize": (plait.quant.dequantize, {"raw": np.zeros((1, 34), np.uint8), "type": "Q8_0"},
                       {"raw": "object", "type": "str"}),
        "quantize": (plait.quant.quantize, {"values": np.zeros((1, 32), np.float32), "type": "Q8_0"},
                     {"values": "object", "type": "str", "weights": "object or none", "search": "bool"}),
        "importance_matrix": (plait.quant.importance_matrix, {"model": m, "text": ids},
                              {"model": "model", "text": "text", "window": "int or none", "dataset": "str",
                               "progress": "progress"}),
        "choose_types": (plait.quant.choose_types, {"model": m, "text": ids, "bits_per_weight": 30},
                         {"model": "model", "text": "text", "bits_per_weight": "float",
                          "imatrix": "object or none", "window": "int or none", "measurements": "folder or none",
                          "threads": "int or none", "progress": "progress"}),
        "quantize_file": (plait.quant.quantize_file, {"model": m, "path": room.folder / "q.gguf", "type": "Q8_0"},
                          {"model": "model", "path": "str", "type": "str", "output_type": "str or none",
                           "imatrix": "object or none", "tensor_types": "object or none", "resume": "bool",
                           "requantize": "bool", "allow_fallback": "bool", "threads": "int or none",
                           "progress": "progress"}),
        "attention": (view, {"model": m, "text": "a b"}, text_call),
        "logit_lens": (lens, {"model": m, "text": "a b"}, text_call),
        "Attention.plot": (view(m, "a b").plot, {"layer": 0, "head": 0},
                           {"layer": "int", "head": "int", "ax": "object or none"}),
        "Attention.plot_spans": (view(m, "a b").plot_spans, {}, {"ax": "object or none"}),
        "LogitLens.plot": (lens(m, "a b").plot, {}, {"last": "int", "ax": "object or none"}),
        "Comparison.plot": (plait.compare(ctx, ctx, ids).plot, {}, {"ax": "object or none"}),
        "cache_html": (plait.figures.cache_html, {"kv": kv}, {"kv": "object"}),
        "context_html": (plait.figures.context_html, {"ctx": ctx}, {"ctx": "context"}),
        "model_html": (plait.figures.model_html, {"model": m}, {"model": "model"}),
        "output_html": (plait.figures.output_html, {"output": ctx.encode(room.batch)}, {"output": "object"}),
        "plot_cells": (plait.figures.plot_cells, {"kv": kv}, {"kv": "object", "ax": "object or none"}),
        "plot_layers": (plait.figures.plot_layers, {"values": [[1.0]], "tokens": ["a"]},
                        {"values": "anything", "tokens": "anything", "label": "str", "limit": "float or none",
                         "ax": "object or none"}),
        "plot_stats": (plait.figures.plot_stats, {"stats": ctx.stats}, {"stats": "object", "ax": "object or none"}),
        "stats_html": (plait.figures.stats_html, {"stats": ctx.stats}, {"stats": "object"}),
        "Snapshot.check": (plait.testing.Snapshot(room.folder / "s", update=True).check, {"name": "a", "value": 1},
                           {"name": "str"}),
        "Snapshot.generate": (plait.testing.Snapshot(room.folder / "s", update=True).generate,
                              {"model": m, "prompts": "a", "max_tokens": 2},
                              {"model": "model", "prompts": "text", "max_tokens": "int", "name": "str",
                               "add_special": "bool"}),
        "assert_greedy": (plait.testing.assert_greedy, {"model": m, "prompt": "a", "expected": "b"},
                          {"model": "model", "prompt": "str", "expected": "str", "add_special": "bool",
                           "top": "int"}),
        "assert_logits_close": (plait.testing.assert_logits_close, {"actual": row, "expected": row},
                                {"actual": "anything", "expected": "anything", "atol": "float", "rtol": "float",
                                 "model": "object or none", "top": "int"}),
    }  # fmt: skip
    return {name: Call(*table) for name, table in tables.items()}


async def _listed(events: Any) -> list[Any]:
    return [event async for event in events]


def has_arguments(value: object) -> bool:
    names = [name for name in inspect.signature(value).parameters if name != "self"]  # type: ignore[arg-type]
    return bool(names)


def test_every_public_call_is_in_the_tables(room):
    callables = public_callables()
    found = calls(room)
    assert set(NAMES) == set(found) - set(PLOTS)
    for name, call in found.items():
        if name not in callables:
            continue
        parameters = inspect.signature(callables[name]).parameters.values()
        named = {
            p.name
            for p in parameters
            if p.name != "self" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        }
        assert named - {"value"} <= set(call.kinds) | ({"n"} & named), name


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


PLOTS = ["Attention.plot", "Attention.plot_spans", "Comparison.plot", "LogitLens.plot"]
NAMES = [
    name
    for name, value in sorted(public_callables().items())
    if has_arguments(value) and name not in SKIPPED and name.split(".")[0] not in RESULTS
]


def names_in_messages(argument: str) -> tuple[str, ...]:
    """Return the words by which messages name an argument."""
    return {
        "prompts": ("prompts", "prompt"),
        "texts": ("texts", "text"),
        "documents": ("documents", "document"),
        "continuations": ("continuations", "continuation"),
        "schema": ("schema", "grammar"),
        "source": ("source", "grammar"),
        "rules": ("rules", "grammar"),
        "pattern": ("pattern", "grammar"),
        "logits_row": ("logits",),
        "seqs": ("seq",),
        "tokens": ("token",),
        "positions": ("pos",),
        "seq": ("seq",),
        "dst": ("dst", "sequence"),
        "src": ("src", "sequence"),
        "raw": ("raw", "shape"),
        "data": ("data", "saved state"),
        "name": ("name", "tensor"),
        "n_vocab": ("n_vocab", "the model has only"),
        "max_length": ("max_length", "sinks and discard", "sinks is"),
        "rank_stabilized": ("rank_stabilized", "none: cannot be opened"),
        "path": ("path", "file", "open", "abc", "no such thing", "embedded null", "state"),
    }.get(argument, (argument,))


@pytest.mark.parametrize("name", [*NAMES, *PLOTS])
def test_wrong_arguments_are_refused_by_name(room, name, monkeypatch):
    pytest.importorskip("llguidance")
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(room.folder)
    call = calls(room)[name]
    problems = []
    with quiet():
        for argument, kind in call.kinds.items():
            for probe, value in PROBES.items():
                given = call.arguments | {argument: value}
                try:
                    call.function(**given)
                except ERRORS as error:
                    text = str(error)
                    if not any(word in text for word in names_in_messages(argument)):
                        problems.append(
                            f"{argument}={probe}: {type(error).__name__} names nothing: {text}"
                        )
                except VERDICTS.get(name, MemoryError):
                    pass
                except OSError as error:
                    if argument not in ("path", "image"):
                        problems.append(f"{argument}={probe}: {error!r}")
                except BaseException as error:
                    problems.append(f"{argument}={probe}: {error!r}")
                else:
                    if probe not in ACCEPTED[kind]:
                        problems.append(f"{argument}={probe}: accepted")
    __import__("matplotlib.pyplot").pyplot.close("all")
    assert not problems, "\n".join([name, *problems])


def test_names_to_capture(room):
    for value in (5, None, b"l_out.0", Stranger(), ["l_out.0"]):
        with pytest.raises(TypeError, match="patterns: expected a str"):
            room.ctx.capture(value)
    with pytest.raises(ValueError, match="patterns: expected at least one"):
        room.ctx.capture()
    with pytest.raises(ValueError, match=r'no value named "l_outt\.0"; similar names'):
        room.ctx.capture("l_outt.0")


def test_closed_contexts_are_refused(room):
    found = calls(room)
    room.ctx.close()
    for name, call in found.items():
        owner = getattr(call.function, "__self__", None)
        uses = [v for v in call.arguments.values() if v is room.ctx] or owner in (
            room.ctx,
            room.ctx.kv,
        )
        if not uses or name in (
            "PromptLookup.attach",
            "Context.edit",
            "Stats",
            "KVCache",
            "SelfExtend",
        ):
            continue
        if name in (
            "context_html",
            "Sequence.belongs_to",
            "DraftModel.attach",
            "Context.value_shape",
        ):
            continue
        with pytest.raises(ValueError, match="closed"):
            call.function(**call.arguments)


@pytest.mark.parametrize("handle", ["foreign", "closed"])
def test_handles_of_other_contexts_and_closed_ones_are_refused(room, handle):
    """Wherever the sequence of the context is valid."""
    ctx = room.ctx if handle == "closed" else plait.Context(room.model, n_ctx=32, n_seq_max=3)
    wrong = ctx.sequence()
    if handle == "closed":
        wrong.close()
    before, problems, n = room.ctx.kv.to_bytes(), [], 0
    for name, call in calls(room).items():
        for argument, value in call.arguments.items():
            if value is not room.seq or (name == "attention_sinks" and handle == "foreign"):
                continue
            n += 1
            try:
                call.function(**(call.arguments | {argument: wrong}))
            except ERRORS as error:
                if "closed" not in str(error) and "another context" not in str(error):
                    problems.append(f"{name} {argument}: {error}")
            else:
                problems.append(f"{name} {argument}: accepted")
    assert not problems, "\n".join(problems)
    assert n > 15
    assert room.ctx.kv.to_bytes() == before


@pytest.mark.parametrize("function", ["decode", "encode"])
def test_batches_of_closed_and_foreign_sequences_are_refused(room, function):
    with plait.Context(room.model, n_ctx=32, n_seq_max=3) as other:
        foreign = batch(([5], other.sequence()))
    stale = batch(([5], room.ctx.sequence()))
    again = room.ctx.sequence()
    for wrong in (foreign, stale):
        with pytest.raises(plait.BatchError, match=r"entry 0: seq: .*(closed|another context)"):
            getattr(room.ctx, function)(wrong)
    assert len(again) == 0


def test_calls_do_not_keep_what_they_were_given(room):
    """A refused call changes nothing."""
    before = room.ctx.kv.to_bytes()
    for call in calls(room).values():
        for argument in call.kinds:
            with quiet(), contextlib.suppress(*ERRORS, OSError):
                call.function(**(call.arguments | {argument: Stranger()}))
    assert room.ctx.kv.to_bytes() == before
