"""Contexts that run some of the layers: chained, they are one context of all layers, bit for bit."""

from __future__ import annotations

import contextlib
import gc
import itertools
import subprocess
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import plait
import pytest
from python.drive import batch, contents, feed, same_bits, tokens
from python.reference_data import model_path

from python import gguf_writer, lora_models

JOINT = ("gemma3n", "gemma4")  # their later layers read what earlier ones hold


class Chain(contextlib.ExitStack):
    """Contexts over consecutive ranges; the output of each is the input of the next."""

    def __init__(self, model: plait.Model, *cuts: int, **options: Any) -> None:
        super().__init__()
        bounds = [0, *cuts, model.n_layer]
        self.parts = [
            self.enter_context(plait.Context(model, layers=range(a, b), **options))
            for a, b in itertools.pairwise(bounds)
        ]

    def run(self, first: plait.Batch, *seqs: tuple[Any, int], call: str = "decode") -> plait.Output:
        """Run a batch that requests all rows; seqs are its (sequence, number of tokens)."""
        out = getattr(self.parts[0], call)(first)
        for ctx in self.parts[1:]:
            out = getattr(ctx, call)(rows_of(out.embeddings, *seqs))
        return out


def rows_of(rows: np.ndarray, *seqs: tuple[Any, int]) -> plait.Batch:
    made, start = plait.Batch(), 0
    for seq, n in seqs:
        made.add_embeddings(rows[start : start + n], seq=seq, logits="all")
        start += n
    return made


def steps_of(rng: np.random.Generator, n_vocab: int) -> list[list[tuple[list[int], int]]]:
    """Random steps: prompts of several lengths, then tokens of some of the sequences."""
    return [
        [
            (rng.integers(3, min(n_vocab, 400), rng.integers(1, 9)).tolist(), int(seq))
            for seq in rng.permutation(3)[: rng.integers(1, 4)]
        ]
        for _ in range(4)
    ]


def call_of(model: plait.Model) -> str:
    with plait.Context(model, n_ctx=32) as ctx:
        return "encode" if ctx.kv.kind == "none" else "decode"


@pytest.fixture
def apart(any_model):
    """Each tiny model whose layers can run apart."""
    if any_model.n_layer < 2 or any_model.arch in JOINT:
        pytest.skip("its layers cannot run apart")
    return any_model


@pytest.mark.parametrize("kv", ["unified", "streams"])
@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
@pytest.mark.goal("G3")
def test_chained_ranges_equal_the_whole(apart, kv, dtype):
    rng = np.random.default_rng(len(apart.arch) + len(kv) + len(dtype))
    n_cuts = rng.integers(1, min(apart.n_layer, 4))
    cuts = sorted(rng.permutation(np.arange(1, apart.n_layer))[:n_cuts].tolist())
    options = {"n_ctx": 64, "n_seq_max": 3, "n_ubatch": 8, "kv": kv}
    options |= {"type_k": dtype, "type_v": dtype}
    call = call_of(apart)
    try:
        whole = plait.Context(apart, **options)
    except (plait.UnsupportedError, ValueError) as error:
        pytest.skip(str(error)[:80])
    with whole, Chain(apart, *cuts, **options) as chain:
        if apart.arch == "t5":
            question = (tokens(9, seed=4, n_vocab=apart.n_vocab), 0)
            for ctx in (whole, *chain.parts):
                ctx.encode(batch(question, (question[0], 1), (question[0], 2)))
        for step in steps_of(rng, apart.n_vocab):
            seqs = [(seq, len(ids)) for ids, seq in step]
            expected = getattr(whole, call)(batch(*step))
            found = chain.run(batch(*step), *seqs, call=call)
            if expected.logits is None:
                assert found.logits is None
                assert same_bits(found.embeddings, expected.embeddings)
            else:
                assert same_bits(found.logits, expected.logits)
        assert sum(ctx.kv.nbytes for ctx in chain.parts) == whole.kv.nbytes
        if call == "encode":
            return
        merged = [(ctx, layer) for ctx in chain.parts for layer in ctx.layers]
        for ctx, layer in merged:
            for seq in range(3):
                for part in ("keys", "values"):
                    try:
                        held = getattr(whole.kv, part)(layer, seq)
                    except plait.UnsupportedError:
                        continue
                    assert same_bits(getattr(ctx.kv, part)(layer, seq), held)


def test_the_residual_stream_is_l_out(apart):
    k = apart.n_layer // 2
    ids = tokens(7, n_vocab=min(apart.n_vocab, 400))
    call = call_of(apart)
    with (
        plait.Context(apart, n_ctx=64) as whole,
        plait.Context(apart, n_ctx=64, layers=range(k)) as low,
        plait.Context(apart, n_ctx=64, layers=range(k, apart.n_layer)) as high,
    ):
        if apart.arch == "t5":
            for ctx in (whole, low, high):
                ctx.encode(batch((ids, 0)))
        with whole.capture(f"l_out.{k - 1}", f"l_out.{k}") as seen:
            getattr(whole, call)(batch((ids, 0)))
        out = getattr(low, call)(batch((ids, 0)))
        assert out.logits is None
        assert same_bits(out.embeddings[:, : apart.n_embd].copy(), seen[f"l_out.{k - 1}"])
        with high.capture(f"l_out.{k}") as later:
            getattr(high, call)(rows_of(out.embeddings, (0, len(ids))))
        assert same_bits(later[f"l_out.{k}"], seen[f"l_out.{k}"])
        assert low.layers == range(k)
        assert {*low.value_names()} | {*high.value_names()} == {*whole.value_names()}


def test_models_whose_layers_share_more_cannot_be_cut(any_model):
    if any_model.arch not in JOINT:
        pytest.skip("its layers can run apart")
    for layers in (range(1), range(1, any_model.n_layer)):
        with pytest.raises(plait.UnsupportedError, match=rf"layers: {any_model.arch} models"):
            plait.Context(any_model, layers=layers)
    with plait.Context(any_model, layers=range(any_model.n_layer), n_ctx=32) as ctx:
        assert feed(ctx, [4, 5, 6]).shape == (3, any_model.n_vocab)


# -- on one model -----------------------------------------------------------------------------


IDS = tokens(9)


N_LAYERS = 4


def write_deep(path: Path, absent: Container[int] = ()) -> Path:
    """Write a random llama with four layers; the weights of absent layers are NaN."""
    weights = gguf_writer.llama_weights(seed=1)
    for i, name in itertools.product(range(N_LAYERS), list(gguf_writer.llama_weights(2))):
        if name.startswith("blk.0."):
            tensor = gguf_writer.llama_weights(seed=3 + i)[name]
            weights[name.replace("blk.0.", f"blk.{i}.")] = tensor
    for name in weights:
        if name.startswith("blk.") and int(name.split(".")[1]) in absent:
            weights[name] = np.full_like(weights[name], np.nan)
    metadata = gguf_writer.llama_metadata() | {"llama.block_count": N_LAYERS}
    return gguf_writer.write(path, metadata | gguf_writer.vocabulary(), weights)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random llama with four layers."""
    return plait.Model(write_deep(tmp_path_factory.mktemp("models") / "deep.gguf"))


@pytest.fixture(scope="module")
def whole(model):
    """The logits of IDS, and the residual stream after each layer."""
    with plait.Context(model, n_ctx=64) as ctx, ctx.capture("l_out.*") as seen:
        logits = feed(ctx, IDS).copy()
    return logits, seen


@pytest.mark.parametrize("call", ["decode", "encode"])
def test_layers_that_hold_nothing_take_any_number_of_tokens(data_dir, call):
    """Each token is computed by itself, so n_ctx does not limit it and causal=False changes nothing."""
    model = plait.Model(model_path(data_dir, "nemotron_h_moe-a"))
    rows = np.random.default_rng(1).standard_normal((8, model.n_embd), np.float32)
    found = []
    for causal in (True, False):
        options = {"n_ctx": 4, "n_batch": 64, "n_ubatch": 3, "layers": range(6, 7)}
        with plait.Context(model, causal=causal, **options) as ctx:
            assert ctx.kv.kind == "none"
            found.append(getattr(ctx, call)(rows_of(rows, (0, 8))).logits.copy())
    assert same_bits(*found)


def test_other_bounds_are_refused(model):
    for wrong in (range(2, 2), range(3, 1), range(-1, 2), range(2, 5), range(7, 9)):
        with pytest.raises(ValueError, match=r"layers: expected a range within range\(0, 4\)"):
            plait.Context(model, layers=wrong)
    with pytest.raises(ValueError, match=r"range of step 1, got range\(0, 4, 2\)"):
        plait.Context(model, layers=range(0, 4, 2))
    for wrong in (3, [0, 1], slice(0, 2), "0-2"):
        with pytest.raises(TypeError, match="layers: expected a range, such as"):
            plait.Context(model, layers=wrong)
    with pytest.raises(ValueError, match="layers: expected"):
        plait.Context(model, layers=range(10**30))


def test_tokens_enter_at_layer_0_only(model, whole):
    with plait.Context(model, layers=range(1, 3), n_ctx=64) as ctx:
        with pytest.raises(ValueError, match=r"starts at layer 1; add the residual stream that"):
            feed(ctx, IDS)
        with pytest.raises(plait.BatchError, match="embeddings have 7 elements each"):
            ctx.decode(rows_of(np.zeros((2, 7), np.float32), (0, 2)))
        assert ctx.kv.seq_pos_max(0) == -1
        out = ctx.decode(rows_of(whole[1]["l_out.0"], (0, len(IDS))))
        assert same_bits(out.embeddings, whole[1]["l_out.2"])
        assert ctx.stats.tokens == len(IDS)


def test_pooling_needs_the_last_layer(model):
    with pytest.raises(ValueError, match='pooling: expected "none" for layers that do not end'):
        plait.Context(model, layers=range(2), pooling="mean", embeddings=True)
    with plait.Context(model, layers=range(2, 4), pooling="mean", embeddings=True) as ctx:
        out = ctx.decode(rows_of(np.ones((3, model.n_embd), np.float32), (0, 3)))
        assert out.embeddings.shape == (1, model.n_embd)


def test_layers_keep_their_numbers(model, whole):
    with Chain(model, 2, n_ctx=64) as chain:
        chain.run(batch((IDS, 0)), (0, len(IDS)))
        low, high = chain.parts
        assert {n.split(".")[1] for n in high.value_names() if n.startswith("blk.")} == {"2", "3"}
        with pytest.raises(IndexError, match="layer 1 is not run by this context: expected 2 to 3"):
            high.kv.keys(1, 0)
        with pytest.raises(IndexError, match="layer 4 does not exist"):
            high.kv.keys(4, 0)
        assert high.kv.keys(3, 0).shape[0] == low.kv.values(0, 0).shape[0] == len(IDS)
        with pytest.raises(ValueError, match=r"no value named .l_out\.0"):
            high.edit("l_out.0", np.zeros(model.n_embd)).__enter__()
        assert {n["layer"] for n in high.graph_nodes(1, 1, 1)} <= {-1, 2, 3}
        assert repr(low.layers) == "range(0, 2)"


def test_edits_and_control_vectors_apply_to_their_layers(model):
    row = np.linspace(-1, 1, model.n_embd, dtype=np.float32)
    vectors = np.stack([row, -row, row * 0.5, row * 2])
    with plait.Context(model, n_ctx=64) as ctx, Chain(model, 1, 3, n_ctx=64) as chain:
        plain = feed(ctx, IDS).copy()
        for one in (ctx, *chain.parts):
            one.kv.clear()
            one.set_control_vector(vectors)
        edits = [c.edit("l_out.2", row, seq=0, positions=[3, 4]) for c in (ctx, chain.parts[1])]
        with edits[0], edits[1]:
            expected = feed(ctx, IDS).copy()
            found = chain.run(batch((IDS, 0)), (0, len(IDS))).logits
        assert same_bits(found, expected)
        assert not same_bits(found, plain)
        for one in (ctx, *chain.parts):  # vectors of single sequences
            one.kv.clear()
            one.set_control_vector(vectors[::-1].copy(), seq=0)
        expected = feed(ctx, IDS).copy()
        assert same_bits(chain.run(batch((IDS, 0)), (0, len(IDS))).logits, expected)


def test_adapters_change_the_layers_of_the_range(tmp_path):
    metadata, weights = lora_models.model("llama")
    model = plait.Model(gguf_writer.write(tmp_path / "base.gguf", metadata, weights))
    tensors = lora_models.deltas(weights, lora_models.matrices(weights), rank=4, seed=1)
    adapter = model.load_lora(lora_models.write_adapter(tmp_path / "a.gguf", "llama", tensors))
    ids = tokens(6, n_vocab=model.n_vocab)
    with plait.Context(model, n_ctx=32) as ctx, Chain(model, 1, n_ctx=32) as chain:
        plain = feed(ctx, ids).copy()
        for one in (ctx, *chain.parts):
            one.kv.clear()
            one.set_lora({adapter: 0.5})
        expected = feed(ctx, ids).copy()
        assert not same_bits(plain, expected)
        assert same_bits(chain.run(batch((ids, 0)), (0, len(ids))).logits, expected)


def test_states_fit_their_range_only(model):
    with (
        Chain(model, 2, n_ctx=64) as chain,
        Chain(model, 2, n_ctx=64) as other,
        plait.Context(model, n_ctx=64) as full,
    ):
        chain.run(batch((IDS, 0)), (0, len(IDS)))
        feed(full, IDS)
        low, high = chain.parts
        for ctx, target in zip(chain.parts, other.parts, strict=True):
            target.kv.from_bytes(ctx.kv.to_bytes())
        expected = chain.run(batch(([5], 0)), (0, 1)).logits.copy()
        assert same_bits(other.run(batch(([5], 0)), (0, 1)).logits, expected)
        before = contents(full)
        for source, target, message in (
            (low, high, "'layers' is '0 to 1' in it, expected '2 to 3'"),
            (low, full, "'layers' is '0 to 1' in it, expected all"),
            (full, high, "'layers' is all in it, expected '2 to 3'"),
        ):
            with pytest.raises(plait.StateError, match=message):
                target.kv.from_bytes(source.kv.to_bytes())
        assert contents(full) == before


def test_forks_and_removals_of_ranges(model):
    with (
        plait.Context(model, n_ctx=64, n_seq_max=3) as ctx,
        Chain(model, 1, 2, n_ctx=64, n_seq_max=3) as chain,
    ):
        feed(ctx, IDS)
        chain.run(batch((IDS, 0)), (0, len(IDS)))
        for one in (ctx, *chain.parts):
            one.kv.seq_cp(0, 1)
            one.kv.seq_rm(1, 5)
            one.kv.seq_rm(0, 7)
            one.kv.seq_add(0, 3, 7, 4)
        step = ([7, 8], 1), ([9], 0)
        expected = ctx.decode(batch(*step)).logits
        assert same_bits(chain.run(batch(*step), (1, 2), (0, 1)).logits, expected)


def test_gradients_of_the_last_range(model, whole):
    loss = plait.Logit(5)
    with (
        plait.Context(model, n_ctx=64) as ctx,
        plait.Context(model, n_ctx=64, layers=range(2, 4)) as high,
        plait.Context(model, n_ctx=64, layers=range(2)) as low,
    ):
        with ctx.gradients("l_out.2", "l_out.3", of=loss) as expected:
            feed(ctx, IDS)
        with high.gradients("l_out.*", of=loss) as found:
            high.decode(rows_of(whole[1]["l_out.1"], (0, len(IDS))))
        assert sorted(found) == ["blk.2.l_out", "blk.3.l_out"]
        for name in found:
            assert same_bits(found[name], expected[name])
        with pytest.raises(ValueError, match="logits"), low.gradients("l_out.0", of=loss):
            feed(low, IDS)


def test_plans_are_used_again(model, whole):
    rows = whole[1]["l_out.1"]
    with plait.Context(model, n_ctx=64, layers=range(2, 4)) as ctx:
        for i in range(4):
            ctx.decode(rows_of(rows[i : i + 1], (0, 1)))
        assert ctx.stats.plans_built == 1
        assert ctx.stats.plans_reused == 3


def test_only_the_weights_of_the_range_are_used(model, whole, tmp_path):
    cut = plait.Model(write_deep(tmp_path / "cut.gguf", absent=(0, 3)))
    with plait.Context(cut, n_ctx=32, layers=range(1, 3)) as ctx:
        out = ctx.decode(rows_of(whole[1]["l_out.0"], (0, len(IDS))))
        assert same_bits(out.embeddings, whole[1]["l_out.2"])


# Prints the growth of the memory of the process while a context is created.
GROWTH = """
import sys, plait
def memory():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
model = plait.Model(sys.argv[1])
before = memory()
ctx = plait.Context(model, n_ctx=16, n_batch=16, n_ubatch=16, layers=range(*map(int, sys.argv[2:])))
print(memory() - before)
"""


def test_memory_is_that_of_the_range(tmp_path):
    """Each layer has 4 MB of feed-forward weights, which take as much memory in panels."""
    width, n_ffn, n_layers = 256, 1365, 8
    rng = np.random.default_rng(1)
    weights = {"token_embd.weight": np.zeros((288, width), np.float32)}
    weights["output_norm.weight"] = np.ones(width, np.float32)
    for i in range(n_layers):
        for name, shape in {
            "attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, width),
            "attn_k": (64, width), "attn_v": (64, width), "attn_output": (width, width),
            "ffn_gate": (n_ffn, width), "ffn_up": (n_ffn, width), "ffn_down": (width, n_ffn),
        }.items():  # fmt: skip
            weights[f"blk.{i}.{name}.weight"] = rng.normal(size=shape).astype(np.float32)
    metadata = gguf_writer.llama_metadata() | {
        "llama.block_count": n_layers, "llama.embedding_length": width,
        "llama.feed_forward_length": n_ffn, "llama.attention.head_count": 8,
        "llama.attention.head_count_kv": 2, "llama.rope.dimension_count": 32,
    }  # fmt: skip
    path = gguf_writer.write(tmp_path / "m.gguf", metadata | gguf_writer.vocabulary(), weights)

    def growth(begin: int, end: int) -> int:
        command = [sys.executable, "-c", GROWTH, str(path), str(begin), str(end)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    per_layer = 3 * 4 * width * n_ffn
    assert growth(0, n_layers) - growth(2, 4) > 5 * per_layer


def test_a_failed_call_changes_nothing(model, whole):
    def fail(rows):
        raise RuntimeError("no")

    with plait.Context(model, n_ctx=64, layers=range(1, 3)) as ctx:
        rows = whole[1]["l_out.0"]
        ctx.decode(rows_of(rows[:4], (0, 4)))
        before = ctx.kv.to_bytes()
        with pytest.raises(RuntimeError, match="no"), ctx.edit("l_out.2", fail):
            ctx.decode(rows_of(rows[4:], (0, 5)))
        assert ctx.kv.to_bytes() == before
        out = ctx.decode(rows_of(rows[4:], (0, 5)))
        assert same_bits(out.embeddings, whole[1]["l_out.2"][4:])


def test_ranges_keep_their_model(tmp_path):
    model = plait.Model(write_deep(tmp_path / "m.gguf"))
    ctx = plait.Context(model, n_ctx=32, layers=range(1, 2))
    out = ctx.decode(rows_of(np.ones((2, model.n_embd), np.float32), (0, 2)))
    kept = out.embeddings.copy()
    ctx.close()
    del ctx, model
    gc.collect()
    assert same_bits(out.embeddings, kept)


@pytest.mark.parametrize("name", ["qwen3vl-a", "qwen3vlmoe"])
def test_image_embeddings_need_the_layers_that_read_them(data_dir, name):
    model = plait.Model(model_path(data_dir, name))
    rng = np.random.default_rng(3)
    wide = rng.standard_normal((5, 3 * model.n_embd)).astype(np.float32)
    with plait.Context(model, n_ctx=32) as ctx, Chain(model, 2, n_ctx=32) as chain:
        expected = ctx.decode(rows_of(wide, (0, 5))).logits
        assert same_bits(chain.run(rows_of(wide, (0, 5)), (0, 5)).logits, expected)
    refused = pytest.raises(plait.UnsupportedError, match="layers that this context does not run")
    with plait.Context(model, n_ctx=32, layers=range(1)) as ctx, refused:
        ctx.decode(rows_of(wide, (0, 5)))


def test_export_has_the_layers_of_the_range(model, whole, tmp_path):
    with plait.Context(model, n_ctx=64, layers=range(1, 3)) as ctx:
        ctx.decode(rows_of(whole[1]["l_out.0"], (0, len(IDS))))
        ctx.kv.export(tmp_path / "kv.npz")
    with np.load(tmp_path / "kv.npz") as held:
        assert sorted(held) == ["blk.1.keys", "blk.1.values", "blk.2.keys", "blk.2.values"]
