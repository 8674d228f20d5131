"""ctx.gradients(): derivatives of a scalar of the logits with respect to intermediate values."""

from __future__ import annotations

import gc
import signal
import threading
import weakref

import numpy as np
import plait
import pytest
from python.drive import batch, contents, feed, same_bits, tokens
from python.inspect.gradients import EXACT, IDS, LOSSES, close, gradients
from python.model.test_encoders import tiny_bert
from python.recurrent_models import MODELS as RECURRENT

from python import gguf_writer, lora_models

# -- what a call contains ---------------------------------------------------------------------


def test_gradients_have_the_shape_of_their_values(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        with ctx.capture("*") as seen:
            grads = gradients(ctx, IDS, plait.Logit(5), "*", logits=[i in (2, 6) for i in range(7)])
        assert {*ctx.value_names()} - {*grads} <= {f"blk.{i}.attn_pattern" for i in range(2)}
        for name in grads:
            assert grads[name].shape == seen[name].shape, name
            assert grads[name].dtype == np.float32
        assert same_bits(grads["l_out.1"], grads["blk.1.l_out"])
        of_logits = np.zeros((2, tiny.n_vocab), np.float32)
        of_logits[1, 5] = 1
        assert same_bits(grads["result_output"], of_logits)
        assert len(grads) == len(grads.names)
        shown = f"of Logit(token=5, position=-1): {len(grads)} values in 1 calls>"
        assert repr(grads) == f"<plait.Gradients {shown}"


def test_gradients_change_nothing_else(tiny):
    """Neither the logits nor captured values; and edits before the values apply."""
    with plait.Context(tiny, n_ctx=64) as ctx:
        with ctx.capture("l_out.*", "attn_out.0") as plain:
            logits = feed(ctx, IDS).copy()
        ctx.kv.clear()
        with (
            ctx.capture("l_out.*", "attn_out.0") as seen,
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


@pytest.mark.parametrize("seq", [None, 0])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "mixtral"])
def test_gradients_through_adapters_and_control_vectors(tmp_path, arch, seq):
    """As those of the model that the adapter has been merged into, for all sequences or for one."""
    metadata, weights = lora_models.model(arch)
    targets = [name for name in lora_models.matrices(weights) if name.startswith(("blk", "output"))]
    tensors = lora_models.deltas(weights, targets, 4, 2)
    named = metadata["general.architecture"]
    adapter = lora_models.write_adapter(tmp_path / "a.gguf", named, tensors, alpha=None)
    model = plait.Model(gguf_writer.write(tmp_path / "m.gguf", metadata, weights))
    merged = plait.Model(
        gguf_writer.write(
            tmp_path / "merged.gguf", metadata, lora_models.merged(weights, tensors, 0.7)
        )
    )
    vector = np.random.default_rng(0).standard_normal((model.n_layer, model.n_embd))
    with plait.Context(model, **EXACT) as ctx, plait.Context(merged, **EXACT) as plain:
        ctx.set_lora({model.load_lora(adapter): 0.7}, seq=seq)
        for context in (ctx, plain):
            context.set_control_vector(vector, first_layer=0, seq=seq)
        names = ("l_out.*", "inp_embd", "k.*", "ffn_inp.*")
        found, want = (gradients(c, IDS, LOSSES[1], *names) for c in (ctx, plain))
        for name in want:
            close(found[name], want[name], 1e-3)


def test_gradients_through_edits_by_arrays(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        row = np.random.default_rng(0).standard_normal(tiny.n_embd).astype(np.float32)

        def found(mode, what, **where):
            ctx.kv.clear()
            with ctx.edit("l_out.1", what, mode, **where):
                return gradients(ctx, IDS, plait.Logit(5), "l_out.0", "l_out.1")

        added = found("add", row)
        assert same_bits(added["l_out.1"], found("add", row, positions=6)["l_out.1"])
        assert added["l_out.0"][6].any()
        replaced = found("replace", row)
        assert replaced["l_out.1"][6].any()
        assert not replaced["l_out.0"].any()
        assert found("replace", row, positions=5)["l_out.0"][6].any()
        # The norm after the layer has the same derivative at twice the value, but for half the size.
        close(found("scale", 2.0)["l_out.0"], found("add", 0.0)["l_out.0"], 1e-3)


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


def test_d_logits_has_the_shape_of_the_logits_as_they_were_passed(tiny):
    """A function may change its array in place. Fewer elements must not be read as more."""

    def halve(logits):
        logits.dtype = np.float64
        return 1.0, logits

    message = r"the logits, \(7, 288\); the function returned the shape \(7, 144\)"
    with (
        plait.Context(tiny, n_ctx=64) as ctx,
        ctx.gradients("*", of=halve),
        pytest.raises(ValueError, match=message),
    ):
        feed(ctx, IDS)


def test_calls_without_a_gradient_change_nothing(tiny):
    with (
        plait.Context(tiny, n_ctx=64, n_batch=16, n_ubatch=4) as ctx,
        ctx.gradients("l_out.0", of=LOSSES[0]),
    ):
        with pytest.raises(ValueError, match=r"the call has 7 tokens.*n_ubatch = 4"):
            feed(ctx, IDS)
        with pytest.raises(ValueError, match="this call requests none"):
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
        with pytest.raises(ValueError, match="this context computes none"):
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
