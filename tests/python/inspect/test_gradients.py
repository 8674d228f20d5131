"""ctx.gradients(): derivatives of a scalar of the logits with respect to intermediate values."""

from __future__ import annotations

import functools
import gc
import signal
import threading
import weakref
from pathlib import Path

import numpy as np
import plait
import plait.quant
import pytest
from python.drive import batch, contents, feed, same_bits, tokens
from python.model.test_encoders import tiny_bert
from python.recurrent_models import MODELS as RECURRENT
from reference.models import llama

from python import gguf_writer, lora_models

IDS = tokens(7, seed=3)
EXACT = {"n_ctx": 64, "type_k": "f32", "type_v": "f32"}
LOSSES = [plait.Logit(5), plait.LogitDifference(5, 9), plait.LogProbability(5)]
# Dense models, then mixtures of experts.
ARCHITECTURES = [
    "llama-gqa", "llama-rope3", "llama-yarn", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "phi3-longrope", "olmo2",
    "cohere2", "gpt2", "gptneox", "mixtral", "qwen3moe", "gpt-oss", "deepseek2",
]  # fmt: skip


def close(found, want, tolerance=1e-4):
    """Compare arrays; `tolerance` is relative to the largest value."""
    assert found.shape == want.shape
    assert np.abs(found - want).max() <= tolerance * np.abs(want).max()


def gradients(ctx, ids, loss, *names, logits="last", seq=0):
    with ctx.gradients(*names, of=loss) as grads:
        feed(ctx, ids, seq=seq, logits=logits)
    return grads


# -- against other implementations ------------------------------------------------------------


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
        known = {name for value in ctx.value_names() for name in plait_spellings(value)}
        names = [name for name in kept if name in known]
        assert len(names) >= 20
        grads = gradients(ctx, IDS, plait.LogProbability(5), *names, logits="all")
    for name in names:
        close(grads[name], kept[name].grad.numpy().reshape(grads[name].shape))


def plait_spellings(name):
    from plait.inspect.capture import spellings

    return spellings(name)


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
        found = gradients(ctx, IDS, loss, "l_out.*", "inp_embd", "attn.*", "ffn_act.*")
        want = gradients(exact, IDS, loss, "l_out.*", "inp_embd", "attn.*", "ffn_act.*")
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


# -- what a call contains ---------------------------------------------------------------------


def test_gradients_have_the_shape_of_their_values(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        with ctx.capture("*") as seen:
            grads = gradients(ctx, IDS, plait.Logit(5), "*", logits=[i in (2, 6) for i in range(7)])
        assert sorted(grads) == sorted(ctx.value_names())
        for name in grads:
            assert grads[name].shape == seen[name].shape, name
            assert grads[name].dtype == np.float32
        assert same_bits(grads["l_out.1"], grads["blk.1.l_out"])
        of_logits = np.zeros((2, tiny.n_vocab), np.float32)
        of_logits[1, 5] = 1
        assert same_bits(grads["result_output"], of_logits)
        assert len(grads) == len(grads.names)
        assert "in 1 calls" in repr(grads)


def test_gradients_change_nothing_else(tiny):
    """Neither the logits nor captured values; and edits before the values apply."""
    with plait.Context(tiny, n_ctx=64) as ctx:
        with ctx.capture("l_out.*", "attn.0") as plain:
            logits = feed(ctx, IDS).copy()
        ctx.kv.clear()
        with (
            ctx.capture("l_out.*", "attn.0") as seen,
            ctx.gradients("l_out.1", "ffn_act.0", of=LOSSES[0]) as grads,
        ):
            assert same_bits(feed(ctx, IDS), logits)
        assert all(same_bits(seen[name], plain[name]) for name in plain)
        assert grads.losses == [logits[-1, 5]]
        ctx.kv.clear()
        with ctx.edit("l_out.0", np.ones(tiny.n_embd)):
            edited = gradients(ctx, IDS, LOSSES[2], "l_out.1", "l_out.0")
        assert not same_bits(edited["l_out.1"], grads["l_out.1"])


@pytest.mark.parametrize("options", [{"threads": 1}, {"fuse": False}, {"flash_attention": False}])
def test_gradients_do_not_depend_on_options(tiny, options):
    with plait.Context(tiny, n_ctx=64) as ctx, plait.Context(tiny, n_ctx=64, **options) as other:
        for ids in (IDS, IDS[:1]):
            want = gradients(ctx, ids, LOSSES[1], "*")
            found = gradients(other, ids, LOSSES[1], "*")
            for name in want:
                close(found[name], want[name]) if want[name].any() else None
            ctx.kv.clear()
            other.kv.clear()


def test_earlier_calls_are_constants(tiny):
    """Later tokens do not act through earlier ones, so their rows are those of one call."""
    with plait.Context(tiny, n_seq_max=2, **EXACT) as ctx:
        want = gradients(ctx, IDS, LOSSES[1], "l_out.0", "k.0", "v.1")
        feed(ctx, IDS[:4], seq=1)
        found = gradients(ctx, IDS[4:], LOSSES[1], "l_out.0", "k.0", "v.1", seq=1)
        for name in want:
            assert want[name][:4].any()
            close(found[name], want[name][4:])


@pytest.mark.parametrize("kv", ["unified", "streams"])
def test_gradients_of_several_sequences(tiny, kv):
    """The rows of each sequence are those that it has alone."""
    parts = [tokens(n, seed=n) for n in (5, 1, 9)]

    def second(logits):  # the loss of the second sequence, whatever the batch contains
        row = 1 if len(logits) > 1 else 0
        slope = np.zeros_like(logits)
        slope[row, 7] = 1
        return float(logits[row, 7]), slope

    with plait.Context(tiny, n_ctx=64, n_seq_max=4, kv=kv) as ctx:
        alone = gradients(ctx, parts[1], second, "*", seq=3)
        with ctx.gradients("*", of=second) as grads:
            ctx.decode(batch(*((ids, seq) for seq, ids in enumerate(parts)), logits="last"))
        for name in alone:
            rows = slice(1, 2) if len(grads[name]) == 3 else slice(5, 6)
            close(grads[name][rows], alone[name])
            assert not np.delete(grads[name], rows, axis=0).any()


def test_rows_of_several_calls_are_joined(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        with ctx.gradients("l_out.0", of=LOSSES[0]) as grads:
            feed(ctx, IDS)
            assert len(grads.losses) == 1
            feed(ctx, IDS[:2])
        assert grads["l_out.0"].shape == (9, tiny.n_embd)
        assert [len(call["blk.0.l_out"]) for call in grads.calls] == [7, 2]
        assert len(grads.losses) == 2
        feed(ctx, IDS)
        assert len(grads.losses) == 2


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_gradients_through_adapters_and_control_vectors(tmp_path, arch):
    """As those of the model that the adapter has been merged into."""
    metadata, weights = lora_models.model(arch)
    targets = [name for name in lora_models.matrices(weights) if name.startswith(("blk", "output"))]
    tensors = lora_models.deltas(weights, targets, 4, 2)
    adapter = lora_models.write_adapter(tmp_path / "a.gguf", arch, tensors, alpha=None)
    model = plait.Model(gguf_writer.write(tmp_path / "m.gguf", metadata, weights))
    merged = plait.Model(
        gguf_writer.write(
            tmp_path / "merged.gguf", metadata, lora_models.merged(weights, tensors, 0.7)
        )
    )
    vector = np.random.default_rng(0).standard_normal((model.n_layer, model.n_embd))
    with plait.Context(model, **EXACT) as ctx, plait.Context(merged, **EXACT) as plain:
        ctx.set_lora({model.load_lora(adapter): 0.7})
        for context in (ctx, plain):
            context.set_control_vector(vector, first_layer=0)
        names = ("l_out.*", "inp_embd", "k.*", "ffn_inp.*")
        found, want = (gradients(c, IDS, LOSSES[1], *names) for c in (ctx, plain))
        for name in want:
            close(found[name], want[name], 1e-3)


def test_a_value_that_the_logits_do_not_depend_on_has_no_gradient(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        grads = gradients(
            ctx, IDS, plait.Logit(5, position=0), "l_out.0", logits=[i in (1, 6) for i in range(7)]
        )
        assert grads["l_out.0"][:2].all()
        assert not grads["l_out.0"][2:].any()


def test_losses(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        logits = feed(ctx, IDS).astype(np.float64)
        logarithm = logits[2, 5] - np.log(np.exp(logits[2]).sum())
        for loss, want in (
            (plait.Logit(5, position=-5), logits[2, 5]),
            (plait.LogitDifference(5, 8, position=2), logits[2, 5] - logits[2, 8]),
            (plait.LogitDifference(5, 5, position=2), 0.0),
            (plait.LogProbability(5, position=2), logarithm),
        ):
            value, slope = loss(logits)
            assert value == pytest.approx(want, rel=1e-6)
            step = np.random.default_rng(0).standard_normal(logits.shape)
            moved = loss(logits + 1e-5 * step)[0] - loss(logits - 1e-5 * step)[0]
            assert (slope * step).sum() == pytest.approx(moved / 2e-5, abs=1e-5)
            assert not slope[[0, 1, 3, 4, 5, 6]].any()


# -- misuse -----------------------------------------------------------------------------------


def test_wrong_arguments(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        with pytest.raises(TypeError, match=r"gradients: of: expected a plait\.Logit"):
            ctx.gradients("l_out.0", of=5)
        with pytest.raises(ValueError, match='gradients: this model has no value named "lout"'):
            ctx.gradients("lout", of=LOSSES[0])
        with pytest.raises(ValueError, match="gradients: patterns: expected at least one"):
            ctx.gradients(of=LOSSES[0])
        with ctx.gradients("l_out.0", of=LOSSES[0]) as grads:
            with pytest.raises(ValueError, match="other gradients of this context are open"):
                ctx.gradients("l_out.1", of=LOSSES[0]).__enter__()
            with pytest.raises(KeyError):
                grads["l_out.1"]
        assert grads["l_out.0"].shape == (0,)
        ctx.close()
        with pytest.raises(ValueError, match="closed"):
            grads.__enter__()


MISTAKES = {
    "expected a function that returns": lambda _: 3.0,
    "expected d_logits of the shape of the logits": lambda x: (1.0, x[0]),
    "of: value": lambda x: ("one", x),
    "token 1000 does not exist: expected 0 to 287": plait.Logit(1000),
    "position 9 does not exist: the call has 1 rows": plait.Logit(5, position=9),
    "a mistake of the caller": lambda _: (_ for _ in ()).throw(RuntimeError("a mistake of the caller")),
}  # fmt: skip


@pytest.mark.parametrize("message", MISTAKES)
def test_an_error_leaves_the_context_as_it_was(tiny, message):
    with plait.Context(tiny, n_ctx=64) as ctx:
        feed(ctx, IDS[:3])
        before = contents(ctx)
        with ctx.gradients("*", of=MISTAKES[message]) as grads:
            with pytest.raises((ValueError, TypeError, IndexError, RuntimeError), match=message):
                feed(ctx, IDS[3:], logits="last")
            assert contents(ctx) == before
            assert grads.losses == []
        rest = feed(ctx, IDS[3:]).copy()
        ctx.kv.clear()
        assert same_bits(feed(ctx, IDS)[3:], rest)


def test_calls_without_a_gradient_change_nothing(tiny):
    with (
        plait.Context(tiny, n_ctx=64, n_batch=16, n_ubatch=4) as ctx,
        ctx.gradients("l_out.0", of=LOSSES[0]),
    ):
        with pytest.raises(ValueError, match=r"the call has 7 tokens.*n_ubatch = 4"):
            feed(ctx, IDS)
        with pytest.raises(ValueError, match="the call requests no logits"):
            feed(ctx, IDS[:2], logits="none")
        assert ctx.kv.seq_pos_max(0) == -1
        feed(ctx, IDS[:4])


def test_what_has_no_derivative_is_named(tmp_path, tiny):
    model = plait.Model(RECURRENT[0].write(tmp_path / "mamba.gguf"))
    with plait.Context(model, n_ctx=64) as ctx:
        message = 'the operation "selective_scan".* of architecture mamba has no derivative'
        with pytest.raises(plait.UnsupportedError, match=message):
            ctx.gradients("inp_embd", of=LOSSES[0]).__enter__()
        last = f"l_out.{model.n_layer - 1}"
        assert gradients(ctx, IDS, LOSSES[0], last)[last].any()
    with plait.Context(tiny, n_ctx=64) as ctx, ctx.edit("l_out.1", lambda x: 2 * x):
        grads = ctx.gradients("l_out.0", of=LOSSES[0])
        with pytest.raises(plait.UnsupportedError, match=r'the operation "edit" \(blk.1.l_out\)'):
            grads.__enter__()
    bert = plait.Model(tiny_bert(tmp_path / "bert.gguf"))
    with plait.Context(bert, n_ctx=64) as ctx:
        grads = ctx.gradients("l_out.0", of=LOSSES[0])
        with pytest.raises(ValueError, match="the context computes no logits"):
            grads.__enter__()


@pytest.fixture
def interruptible():
    """Python's own handler of SIGINT: a shell starts programs in the background with the signal ignored."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_the_backward_pass(tiny):
    """A signal that arrives after the loss ends the call, which changes nothing."""
    done = threading.Event()

    def loss(logits):
        threading.Timer(0.03, signal.raise_signal, (signal.SIGINT,)).start()
        done.set()
        return float(logits[-1, 5]), np.ones_like(logits)

    ids = tokens(1000, seed=1)
    with plait.Context(tiny, n_ctx=1024, n_batch=1024, n_ubatch=1024) as ctx:
        with ctx.gradients("inp_embd", of=loss), pytest.raises(KeyboardInterrupt):
            feed(ctx, ids)
        assert done.is_set()
        assert ctx.kv.seq_pos_max(0) == -1
        assert feed(ctx, IDS).shape == (7, tiny.n_vocab)


def test_a_loss_is_released_with_its_gradients(tiny):
    class Loss:
        def __call__(self, logits):
            return 0.0, np.zeros_like(logits)

    with plait.Context(tiny, n_ctx=64) as ctx:
        loss = Loss()
        alive = weakref.ref(loss)
        grads = ctx.gradients("l_out.0", of=loss)
        del loss
        with grads:
            feed(ctx, IDS)
        assert alive() is not None
        del grads
        gc.collect()
        assert alive() is None
        ctx.gradients("l_out.0", of=Loss()).__enter__()
        gc.collect()  # an object that was never left closes itself
        gradients(ctx, IDS, LOSSES[0], "l_out.0")
