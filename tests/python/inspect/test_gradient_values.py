"""The values of gradients, against other implementations and against differences of the loss."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import plait
import plait.quant
import pytest
from plait.inspect.capture import spellings
from python.drive import feed, tokens
from python.inspect.gradients import EXACT, IDS, LOSSES, close, gradients
from reference.models import llama

from python import gguf_writer

# Dense models, then mixtures of experts.
ARCHITECTURES = [
    "llama-gqa", "llama-rope3", "llama-yarn", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "phi3-longrope", "olmo2",
    "cohere2", "gpt2", "gptneox", "mixtral", "qwen3moe", "gpt-oss", "deepseek2",
]  # fmt: skip


@functools.cache
def complex_weights():
    return {name: w.astype(np.complex128) for name, w in gguf_writer.llama_weights().items()}


def reference_logits(layer, residual):
    """The logits of the last token, in complex128, given the residual stream before a layer."""
    weights = complex_weights()
    later = {
        ".".join(["blk", str(int(parts[1]) - layer), *parts[2:]]): weight
        for name, weight in weights.items()
        if (parts := name.split("."))[0] == "blk" and int(parts[1]) >= layer
    } | {"output_norm.weight": weights["output_norm.weight"]}
    hidden = llama.hidden(
        later, residual, gguf_writer.N_LAYERS - layer, gguf_writer.HEAD, gguf_writer.EPSILON, gguf_writer.ROPE_BASE
    )  # fmt: skip
    return hidden[-1] @ weights["output.weight"].T


def log_probability(logits):
    return logits[5] - np.log(np.exp(logits - logits.max().real).sum()) - logits.max().real


SCALARS = [lambda x: x[5], lambda x: x[5] - x[9], log_probability]


@pytest.mark.parametrize("number", range(len(LOSSES)), ids=[type(x).__name__ for x in LOSSES])
@pytest.mark.parametrize(("name", "layer"), [("inp_embd", 0), ("l_out.0", 1)])
def test_gradients_equal_those_of_the_paper(tiny, name, layer, number):
    """The reference is differentiated by complex steps, which have no error of cancellation."""
    scalar = SCALARS[number]
    with plait.Context(tiny, **EXACT) as ctx, ctx.capture(name) as seen:
        grads = gradients(ctx, IDS[:4], LOSSES[number], name)
    residual = seen[name].astype(np.complex128)
    want = np.empty(residual.shape)
    for at in np.ndindex(residual.shape):
        moved = residual.copy()
        moved[at] += 1e-20j
        want[at] = scalar(reference_logits(layer, moved)).imag / 1e-20
    close(grads[name], want)
    value = scalar(reference_logits(layer, residual)).real
    assert grads.losses == [pytest.approx(value, abs=1e-4)]


def test_gradients_equal_those_of_torch(tiny):
    torch = pytest.importorskip("torch")
    weights = {
        name: torch.from_numpy(w).double() for name, w in gguf_writer.llama_weights().items()
    }
    kept = {}

    def keep(name, x):
        x.requires_grad_()
        x.retain_grad()
        kept[name] = x
        return x

    def norm(x, weight):
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + gguf_writer.EPSILON) * weight

    def rotate(x):
        dim = x.shape[-1]
        frequency = gguf_writer.ROPE_BASE ** (-torch.arange(0, dim, 2).double() / dim)
        angle = torch.arange(len(x)).double()[:, None, None] * frequency
        a, b = x[..., 0::2], x[..., 1::2]
        pairs = [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]
        return torch.stack(pairs, dim=-1).flatten(-2)

    x = keep("inp_embd", weights["token_embd.weight"][IDS])
    for i in range(gguf_writer.N_LAYERS):
        w = {n.split(".", 2)[2]: v for n, v in weights.items() if n.startswith(f"blk.{i}.")}
        h = keep(f"attn_norm.{i}", norm(x, w["attn_norm.weight"]))
        q, k, v = (
            keep(
                f"{c}.{i}",
                (h @ w[f"attn_{c}.weight"].T).reshape(len(IDS), -1, gguf_writer.HEAD) * 1.0,
            )
            for c in "qkv"
        )
        q, k = keep(f"q_rope.{i}", rotate(q)), keep(f"k_rope.{i}", rotate(k))
        k, v = (y.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for y in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / gguf_writer.HEAD**0.5
        scores = scores.masked_fill(
            torch.ones(len(IDS), len(IDS)).triu(1).bool(), float("-inf")
        ).softmax(-1)
        heads = keep(f"attn.{i}", torch.einsum("hqk,khd->qhd", scores, v))
        kept[f"attn_heads.{i}"] = kept[f"attn.{i}"]
        out = keep(f"attn_out.{i}", heads.flatten(1) @ w["attn_output.weight"].T)
        x = keep(f"ffn_inp.{i}", x + out)
        h = keep(f"ffn_norm.{i}", norm(x, w["ffn_norm.weight"]))
        gate = keep(f"ffn_gate.{i}", h @ w["ffn_gate.weight"].T)
        up = keep(f"ffn_up.{i}", h @ w["ffn_up.weight"].T)
        act = keep(f"ffn_act.{i}", torch.nn.functional.silu(gate) * up)
        x = keep(f"l_out.{i}", x + act @ w["ffn_down.weight"].T)
    logits = (
        keep("result_norm", norm(x, weights["output_norm.weight"])) @ weights["output.weight"].T
    )
    torch.log_softmax(logits[-1], dim=-1)[5].backward()

    with plait.Context(tiny, **EXACT) as ctx:
        known = {name for value in ctx.value_names() for name in spellings(value)}
        names = [name for name in kept if name in known]
        assert len(names) >= 20
        grads = gradients(ctx, IDS, plait.LogProbability(5), *names, logits="all")
    for name in names:
        close(grads[name], kept[name].grad.numpy().reshape(grads[name].shape))


def check_against_differences(ctx, ids, loss):
    """Compare the gradient of each value with the change of the loss along a random direction.

    The wider of two steps has less noise of float32 logits. It may change the choice of an expert, which is no
    derivative; then the other one decides.
    """
    grads = gradients(ctx, ids, loss, "*")
    random = np.random.default_rng(1)
    for name in grads:
        direction = random.standard_normal(ctx.value_shape(name)).astype(np.float32)

        def moved(by, name=name, direction=direction):
            ctx.kv.clear()
            with ctx.edit(name, (by * direction).astype(np.float32)):
                return loss(feed(ctx, ids, logits="last"))[0]

        ctx.kv.clear()
        with ctx.capture(name) as seen:
            feed(ctx, ids, logits="last")
        along = float((grads[name].astype(np.float64) * direction).sum())
        size = np.linalg.norm(grads[name]) * np.linalg.norm(direction)
        for step in (5e-3, 5e-4):
            h = step * float(np.sqrt((seen[name] ** 2).mean()))
            difference = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h)
            allowed = 5e-3 * (abs(along) + 0.02 * size) + 2e-6 / h
            if abs(along - difference) <= allowed:
                break
        assert abs(along - difference) <= allowed, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_of_architectures_equal_differences(data_dir, architecture):
    model = plait.Model(data_dir / "conformance" / architecture / "model.gguf")
    with plait.Context(model, **EXACT) as ctx:
        check_against_differences(ctx, tokens(23), plait.LogitDifference(5, 9))


def quantized_model(folder: Path, block: str) -> tuple[Path, Path]:
    """A tiny model with weights of a block type, and the same with the dequantised weights."""
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    packed, plain = {}, {}
    for name, weight in gguf_writer.llama_weights().items():
        if weight.ndim == 1:
            packed[name] = plain[name] = weight
            continue
        raw = plait.quant.quantize(weight, block)
        packed[name] = gguf_writer.Raw(block, np.asarray(raw).reshape(len(weight), -1))
        plain[name] = plait.quant.dequantize(raw.reshape(-1), block).reshape(weight.shape)
    return (
        gguf_writer.write(folder / f"{block}.gguf", metadata, packed),
        gguf_writer.write(folder / f"{block}-f32.gguf", metadata, plain),
    )


@pytest.mark.parametrize("block", ["Q8_0", "Q4_0", "Q5_1"])
def test_gradients_of_quantized_weights(tmp_path, block):
    """Those of the dequantised weights, but for the rounding of activations in the forward pass."""
    packed, plain = (plait.Model(path) for path in quantized_model(tmp_path, block))
    loss = plait.LogitDifference(5, 9)
    with plait.Context(packed, **EXACT) as ctx, plait.Context(plain, **EXACT) as exact:
        found = gradients(ctx, IDS, loss, "l_out.*", "inp_embd", "attn_out.*", "ffn_act.*")
        want = gradients(exact, IDS, loss, "l_out.*", "inp_embd", "attn_out.*", "ffn_act.*")
        for name in want:
            close(found[name], want[name], 0.05)
        for name in ("l_out.0", "l_out.1"):
            errors = [error_along(ctx, loss, name, found[name], seed) for seed in range(20)]
            off, size = np.sqrt((np.array(errors) ** 2).mean(axis=0))
            assert off < 0.15 * size, name


def error_along(ctx, loss, name, gradient, seed):
    """Return how far the derivative along a random direction is from a difference, and its size.

    Rounding of activations to int8 makes the loss a staircase, so a difference needs a wide step.
    """
    direction = np.random.default_rng(seed).standard_normal(gradient.shape[1]).astype(np.float32)
    values = []
    for by in (0.1, -0.1):
        ctx.kv.clear()
        with ctx.edit(name, np.float32(by) * direction):
            values.append(loss(feed(ctx, IDS, logits="last"))[0])
    along = float((gradient * direction).sum())
    return along - (values[0] - values[1]) / 0.2, along


@pytest.mark.parametrize(("dtype", "tolerance"), [("f16", 5e-3), ("q8_0", 0.1)])
def test_gradients_with_rounded_caches(tiny, dtype, tolerance):
    """Attention reads rounded keys and values, those of blocks in another basis; derivatives differ as little."""
    found = {}
    for cache in (dtype, "f32"):
        with plait.Context(tiny, n_ctx=64, type_k=cache, type_v=cache) as ctx:
            names = ("l_out.0", "inp_embd", "q.*", "k.*", "v.*")
            found[cache] = dict(gradients(ctx, tokens(12), plait.LogitDifference(5, 9), *names))
    for name, want in found["f32"].items():
        close(found[dtype][name], want, tolerance)
