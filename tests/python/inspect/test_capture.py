"""ctx.capture(): captured values are those from which the logits are computed."""

import subprocess
import sys
import textwrap

import numpy as np
import plait
import pytest
from python.drive import UNDER_ASAN, batch, feed, same_bits, tokens
from python.model.test_encoders import SENTENCES, tiny_bert


def rms_norm(x, weight, epsilon):
    x = x.astype(np.float64)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * weight


def test_the_last_layer_gives_the_logits(tiny):
    ids = tokens(20)
    with plait.Context(tiny, n_ctx=64) as ctx:
        with ctx.capture("l_out.*", "result_*") as seen:
            logits = feed(ctx, ids)
        last = seen[f"blk.{tiny.n_layer - 1}.l_out"]
        assert last.shape == (20, tiny.n_embd)
        assert last.dtype == np.float32
        norm = rms_norm(
            last,
            tiny.tensor("output_norm.weight"),
            tiny.metadata["llama.attention.layer_norm_rms_epsilon"],
        )
        np.testing.assert_allclose(seen["result_norm"], norm, rtol=1e-4, atol=1e-5)
        names = tiny.tensors
        output = tiny.tensor("output.weight" if "output.weight" in names else "token_embd.weight")
        np.testing.assert_allclose(logits, norm @ output.T, rtol=1e-3, atol=1e-4)
        assert same_bits(seen["result_output"], logits)


def test_keys_and_values_equal_those_in_the_cache(tiny):
    with plait.Context(tiny, n_ctx=64, type_k="f32", type_v="f32") as ctx:
        with ctx.capture("blk.*.k_rope", "v.*", "k.1") as seen:
            feed(ctx, tokens(9), logits="last")
            feed(ctx, tokens(4), logits="none")
        assert sorted(seen) == sorted(
            ["blk.0.k_rope", "blk.1.k_rope", "blk.0.v", "blk.1.v", "blk.1.k"]
        )
        for layer in range(2):
            assert same_bits(seen[f"k_rope.{layer}"], ctx.kv.keys(layer, 0))
            assert same_bits(seen[f"v.{layer}"], ctx.kv.values(layer, 0))
        assert not same_bits(seen["k.1"], seen["k_rope.1"])


def all_values(model, ids, **options):
    with plait.Context(model, **{"n_ctx": 64, "n_seq_max": 2, **options}) as ctx:
        if model.arch == "t5":
            ctx.encode(batch((ids, 0)))
        plain = ctx.encode if ctx.kv.kind == "none" else ctx.decode
        given = batch((ids, 0))
        with ctx.capture("*") as seen:
            out = plain(given)
        return seen.calls[0], out.logits if out.logits is not None else out.embeddings


def test_every_named_value_of_every_architecture(any_model):
    ids = tokens(11, 1, min(any_model.n_vocab, 288))
    seen, out = all_values(any_model, ids)
    assert all(len(rows) == len(ids) for rows in seen.values())
    assert all(np.isfinite(rows).all() for rows in seen.values())
    roles = {name.split(".")[2] for name in seen if name.startswith("blk.")}
    assert "l_out" in roles
    assert {"attn_heads", "q", "k", "v"} & roles or {"scan", "mixer_out", "token_shift"} & roles
    kept = "result_output" if "result_output" in seen else "result_norm"
    if any_model.arch not in ("bert", "nomic-bert", "modern-bert"):
        assert same_bits(seen[kept], out)

    # The same bits in microbatches and without fusion; capturing changes nothing.
    for options in ({"n_ubatch": 4}, {"fuse": False}):
        again, _ = all_values(any_model, ids, **options)
        assert again.keys() == seen.keys()
        assert [n for n in seen if not same_bits(seen[n], again[n])] == []
    with plait.Context(any_model, n_ctx=64, n_seq_max=2) as ctx:
        if any_model.arch == "t5":
            ctx.encode(batch((ids, 0)))
        plain = ctx.encode if ctx.kv.kind == "none" else ctx.decode
        got = plain(batch((ids, 0)))
        assert same_bits(got.logits if got.logits is not None else got.embeddings, out)


@pytest.mark.parametrize("n_ubatch", [3, 5, 512])
def test_rows_come_in_the_order_of_the_batch(tiny, n_ubatch):
    parts = [tokens(9, 1), tokens(6, 2)]
    alone = []
    for ids in parts:
        with plait.Context(tiny, n_ctx=64) as ctx, ctx.capture("l_out.1", "result_norm") as seen:
            feed(ctx, ids)
        alone.append(seen)
    mixed = plait.Batch()
    order = [(0, i) for i in range(9)] + [(1, i) for i in range(6)]
    np.random.default_rng(3).shuffle(order)
    order.sort(key=lambda item: item[1])
    for seq, i in order:
        mixed.add(parts[seq][i], seq=seq, logits=i % 2 == 0)
    with (
        plait.Context(tiny, n_ctx=64, n_seq_max=2, n_ubatch=n_ubatch) as ctx,
        ctx.capture("l_out.1", "result_norm") as seen,
    ):
        ctx.decode(mixed)
    assert same_bits(seen["l_out.1"], np.stack([alone[s]["l_out.1"][i] for s, i in order]))
    asked = [(s, i) for s, i in order if i % 2 == 0]
    assert same_bits(seen["result_norm"], np.stack([alone[s]["result_norm"][i] for s, i in asked]))


def test_encoders_that_run_whole_sequences(tmp_path):
    bert = plait.Model(tiny_bert(tmp_path / "bert.gguf"))

    def run(sentences, **options):
        made = plait.Batch()
        for at in range(max(map(len, sentences))):  # entries of the sequences are interleaved
            for seq, ids in enumerate(sentences):
                if at < len(ids):
                    made.add(ids[at], pos=at, seq=seq, logits=True)
        with (
            plait.Context(bert, n_ctx=256, n_seq_max=8, **options) as ctx,
            ctx.capture("l_out.1") as seen,
        ):
            out = ctx.encode(made)
        return seen["l_out.1"], out.embeddings

    whole, hidden = run(SENTENCES)
    pieces, same = run(SENTENCES, n_ubatch=4)
    assert same_bits(hidden, same)
    assert same_bits(whole, pieces)


def test_microbatches_without_outputs_have_their_rows(any_model):
    n_vocab = min(any_model.n_vocab, 288)
    given = batch((tokens(4, 1, n_vocab), 0), logits="none")
    given.add_sequence(tokens(4, 2, n_vocab), seq=1, logits="all")
    plain = {} if any_model.arch == "t5" else {"pooling": "none", "embeddings": True}

    def run(n_ubatch):
        with plait.Context(any_model, n_ctx=64, n_seq_max=2, n_ubatch=n_ubatch, **plain) as ctx:
            if any_model.arch == "t5":
                ctx.encode(batch((tokens(5), 0), (tokens(3), 1)))
            with ctx.capture("*") as seen:
                (ctx.encode if ctx.kv.kind == "none" else ctx.decode)(given)
        return seen.calls[0]

    whole, pieces = run(512), run(4)
    assert pieces.keys() == whole.keys()
    assert [n for n in whole if not same_bits(whole[n], pieces[n])] == []


def test_a_new_set_builds_plans_once(tiny):
    with plait.Context(tiny, n_ctx=64) as ctx:
        feed(ctx, [5])
        ctx.stats.reset()
        for names in (["l_out.0"], ["l_out.0", "l_out.1"], ["l_out.1", "l_out.0"], ["l_out.0"]):
            with ctx.capture(*names):
                feed(ctx, [5])
            feed(ctx, [5])
        assert ctx.stats.plans_built == 2
        assert ctx.stats.plan_misses == {"new capture set": 2}


def test_calls_by_themselves(tiny):
    with plait.Context(tiny, n_ctx=16) as ctx:
        with ctx.capture("l_out.0", "result_norm") as seen:
            feed(ctx, tokens(3))
            assert len(seen.calls) == 1
            with pytest.raises(plait.CacheFull):
                feed(ctx, tokens(14))
            ctx.decode(batch((tokens(2), 0), logits="none"))
        feed(ctx, [7])
        assert [sorted(call) for call in seen.calls] == [
            ["blk.0.l_out", "result_norm"],
            ["blk.0.l_out"],
        ]
        assert len(seen["blk.0.l_out"]) == 5
        assert len(seen["result_norm"]) == 3
        first = seen["blk.0.l_out"].copy()
        feed(ctx, tokens(5))
        assert same_bits(first, seen["blk.0.l_out"])


def test_mistakes_are_named(tiny):
    with plait.Context(tiny, n_ctx=16) as ctx:
        with pytest.raises(ValueError, match=r'"blk.1.l_oot".*blk.1.l_out'):
            ctx.capture("blk.1.l_oot")
        with pytest.raises(
            ValueError, match=r'^capture: "\*pattern\*" matches only attn_pattern values'
        ):
            ctx.capture("*pattern*")
        with pytest.raises(ValueError, match="at least one"):
            ctx.capture()
        with pytest.raises(TypeError, match="int"):
            ctx.capture(3)
        with pytest.raises(ValueError, match="is not a value"):
            plait._core.Capture(ctx, ["nothing"]).__enter__()
        with ctx.capture("l_out.*"), pytest.raises(ValueError, match="open"), ctx.capture("q.*"):
            pass
        with ctx.capture("l_out.*") as seen:
            ctx.close()
        assert seen.calls == []


STREAM = textwrap.dedent("""
    import re, sys
    from pathlib import Path
    import numpy as np, plait

    def peak():
        # In KiB. Unlike ru_maxrss, it does not begin with the memory of the process that started this one.
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

    model, folder, n_calls = plait.Model(sys.argv[1]), sys.argv[2] or None, int(sys.argv[3])
    with plait.Context(model, n_ctx=64, n_seq_max=64, n_batch=4096, n_ubatch=4096, threads=1) as ctx:
        batch = plait.Batch()
        for seq in range(64):
            batch.add_sequence((np.arange(64) * (seq + 3) + 5) % 280, seq=seq, logits="none")
        with ctx.capture("k.1", sink=folder) as seen:
            for _ in range(3):
                ctx.encode(batch)
            before = peak()
            for _ in range(n_calls - 3):
                ctx.encode(batch)
            print(peak() - before)
""")


@pytest.mark.skipif(UNDER_ASAN, reason="the sanitizer keeps freed memory")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_a_million_rows_pass_through_constant_memory(tiny_path, tiny, tmp_path):
    """With a directory as sink; without one, the rows take many times the limit."""

    def growth(folder, n_calls):
        done = subprocess.run(
            [sys.executable, "-c", STREAM, tiny_path, folder, str(n_calls)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return int(done.stdout) * 1024

    n_calls, limit = 246, 16 << 20
    assert n_calls * 4096 > 1_000_000
    assert growth(tmp_path / "rows", n_calls) < limit
    rows = np.load(tmp_path / "rows" / "blk.1.k.npy", mmap_mode="r")
    assert rows.shape == (n_calls * 4096, *plait.Context(tiny, n_ctx=8).value_shape("blk.1.k"))
    assert rows.nbytes > 7 * limit
    for call in (1, 100, n_calls - 1):  # every call has the rows of the first
        assert (rows[call * 4096 : (call + 1) * 4096] == rows[:4096]).all()
    assert np.abs(rows[:4096]).min(axis=(1, 2)).max() > 0
    assert growth("", n_calls) > 4 * limit


def test_shapes_of_values_by_both_spellings(tiny: plait.Model) -> None:
    with plait.Context(tiny, n_ctx=8) as ctx:
        for name in ctx.value_names():
            _, layer, *rest = name.split(".") if name.startswith("blk.") else ("", "", name)
            short = ".".join([rest[0], layer, *rest[1:]]) if layer else name
            assert ctx.value_shape(short) == ctx.value_shape(name)
        with pytest.raises(ValueError, match=r'value_shape: "attn_heads\.9" is not a value'):
            ctx.value_shape("attn_heads.9")


def test_given_embeddings_are_the_value_inp_embd(any_model):
    """Captures and edits apply to embeddings in a batch as they do to those of tokens."""
    if any_model.arch.startswith(("t5", "qwen3vl")):
        pytest.skip(
            "decode() needs the output of encode(), or embeddings have parts for several layers"
        )
    with plait.Context(any_model, n_ctx=64) as ctx:
        rows = np.random.default_rng(0).standard_normal((5, any_model.n_embd)).astype(np.float32)

        def computed(given):
            ctx.kv.clear()
            batch = plait.Batch()
            batch.add_embeddings(given, logits="all")
            out = ctx.decode(batch)
            return (out.embeddings if out.logits is None else out.logits).copy()

        with ctx.capture("inp_embd") as seen:
            want = computed(rows)
        with ctx.edit("inp_embd", seen["inp_embd"].mean(axis=0), "replace"):
            replaced = computed(rows)
        assert seen["inp_embd"].shape == rows.shape
        assert not same_bits(replaced, want)
