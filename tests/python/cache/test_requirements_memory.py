"""Requirements on reserved memory, unsupported operations and state that belongs to one context."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import plait
import pytest
from python.drive import UNDER_ASAN, batch, feed, same_bits, tokens

CPP = Path(__file__).parents[3] / "cpp"


def test_many_sequences_at_once_need_no_more_than_was_there(any_model):  # S3-14
    if any_model.arch in ("bert", "nomic-bert", "t5"):
        pytest.skip("its decode() remembers nothing, or needs encode() first")
    n_vocab = min(any_model.n_vocab, 288)
    with plait.Context(any_model, n_ctx=64, n_seq_max=8) as ctx:
        bytes_at_first = ctx.compute_bytes
        assert bytes_at_first > 0
        ctx.decode(batch(*((tokens(3, seq, n_vocab), seq) for seq in range(8))))
        ctx.decode(batch(*((tokens(1, seq, n_vocab), seq) for seq in range(8))))
        assert ctx.compute_bytes == bytes_at_first


@pytest.mark.parametrize("kv", ["unified", "streams"])
@pytest.mark.parametrize("flash", [True, False])
def test_a_cache_filled_to_the_last_cell_needs_no_more(tiny, kv, flash):  # S3-15
    with plait.Context(tiny, n_ctx=700, n_seq_max=2, kv=kv, flash_attention=flash) as ctx:
        bytes_at_first = ctx.compute_bytes
        for seq in (0, 1):
            feed(ctx, tokens(690), seq, logits="none")
            for _ in range(10):
                feed(ctx, [7], seq)
        assert ctx.kv.n_free == 0
        assert ctx.compute_bytes == bytes_at_first


def test_embeddings_need_no_more_than_tokens(any_model):  # S3-16
    if any_model.arch in ("bert", "nomic-bert", "t5"):
        pytest.skip("its decode() remembers nothing, or needs encode() first")
    with plait.Context(any_model, n_ctx=600, n_ubatch=min(512, any_model.n_ctx_train)) as ctx:
        bytes_at_first = ctx.compute_bytes
        made = plait.Batch()
        n = ctx.n_ubatch
        # Deepstack layers (Qwen3-VL) add further parts to an input embedding.
        parts = 1 + any_model.metadata.get(f"{any_model.arch}.n_deepstack_layers", 0)
        rows = np.random.default_rng(0).standard_normal((n, parts * any_model.n_embd))
        made.add_embeddings(rows.astype(np.float32), logits="all")
        ctx.decode(made)
        assert ctx.compute_bytes == bytes_at_first


def test_logits_of_every_token_need_no_more(tiny):  # S4-26
    with plait.Context(tiny, n_ctx=600, embeddings=True) as ctx:
        bytes_at_first = ctx.compute_bytes
        feed(ctx, tokens(512), logits="all")
        assert ctx.compute_bytes == bytes_at_first


def test_an_encoder_s_largest_call_needs_no_more(data_dir):  # S4-26
    for name in ("bert", "t5"):
        model = plait.Model(data_dir / "conformance" / name / "model.gguf")
        n = min(64, model.n_ctx_train or 64)
        with plait.Context(model, n_ctx=n, n_seq_max=2, n_ubatch=n) as ctx:
            ctx.encode(batch((tokens(2, 0, 250), 0), logits="all"))
            reserved = ctx.compute_bytes
            ctx.encode(batch((tokens(n, 0, 250), 0), (tokens(n, 1, 250), 1), logits="all"))
            assert ctx.compute_bytes == reserved


def test_invalid_shifts_are_typed_errors_and_change_nothing(any_model):  # S3-12
    n_vocab = min(any_model.n_vocab, 288)
    with plait.Context(any_model, n_ctx=64) as ctx:
        if ctx.kv.kind in ("none", "cross") or ctx.kv.can_shift:
            pytest.skip("it has nothing to shift, or can")
        feed(ctx, tokens(9, 0, n_vocab))
        data = ctx.kv.to_bytes()
        with pytest.raises(plait.UnsupportedError):
            ctx.kv.seq_add(0, 0, None, 3)
        assert ctx.kv.to_bytes() == data
        assert np.isfinite(feed(ctx, [7])).all()


OUT_OF_MEMORY = """
import resource, sys, plait
model = plait.Model(sys.argv[1])
def used():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
def tokens_of(ctx):
    batch = plait.Batch()
    batch.add_sequence([5, 6, 7], logits="last")
    return ctx.decode(batch).logits.tobytes()
with plait.Context(model, n_ctx=64) as ctx:
    before = tokens_of(ctx)
limit = used() + (64 << 20)  # enough for the cache, of 16 MiB, not for a step of 65536 tokens
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
n = 1 << 16
for i in range(5):
    at_first = used()
    try:
        plait.Context(model, n_ctx=n, n_batch=n, n_ubatch=n)
        print("created")
    except (MemoryError, plait.BackendError) as error:
        print("refused", error)
    if i > 0 and used() > at_first:
        print("kept", used() - at_first)
with plait.Context(model, n_ctx=n, n_ubatch=64) as ctx:
    print("same" if tokens_of(ctx) == before else "other")
"""


@pytest.mark.skipif(UNDER_ASAN, reason="the sanitizer reserves more address space than the limit")
def test_a_context_whose_steps_do_not_fit_into_memory_is_not_created(tiny_path):  # S3-17
    """The cache fits and the buffers of a step do not: an error at creation, after which nothing is held."""
    ran = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY, tiny_path],
        capture_output=True,
        text=True,
        check=True,
    )
    *refused, last = ran.stdout.splitlines()
    assert len(refused) == 5, ran.stdout
    assert all(line.startswith("refused") for line in refused), ran.stdout
    assert last == "same"


def test_a_context_without_memory_is_not_created(tiny):  # S3-17
    with plait.Context(tiny, n_ctx=16) as ctx:
        for n_ubatch in (2**30, 2**31 - 1):
            with pytest.raises((MemoryError, ValueError)):
                plait.Context(tiny, n_ctx=2**31 - 1, n_batch=n_ubatch, n_ubatch=n_ubatch)
        assert np.isfinite(feed(ctx, tokens(3))).all()


@pytest.mark.parametrize("name", ["mixtral", "gpt-oss", "qwen3moe", "deepseek2"])
def test_every_expert_is_there_when_the_context_is(data_dir, tmp_path, name):  # S4-44
    """Nothing is read from the file later, so no warm-up is needed."""
    source = data_dir / "conformance" / name / "model.gguf"
    path = Path(shutil.copy(source, tmp_path / "model.gguf"))
    ids = np.random.default_rng(7).integers(3, 400, 200)
    with (
        plait.Context(plait.Model(path), n_ctx=256) as ctx,
        plait.Context(plait.Model(source), n_ctx=256) as other,
    ):
        built = ctx.stats.plans_built
        path.write_bytes(bytes(path.stat().st_size))
        assert same_bits(feed(ctx, ids), feed(other, ids))
        assert built == 0


def test_decode_and_encode_share_one_step_runner():  # S4-36
    """Both are a line or two before StepRunner::run, which knows no kind of memory and no kind of call."""
    source = (CPP / "runtime" / "session.cpp").read_text()
    for call in ("decode", "encode"):
        (body,) = re.findall(rf"^Outputs Session::{call}\(.*?^}}", source, re.DOTALL | re.MULTILINE)
        assert len(body.splitlines()) <= 12
        assert re.search(r"runner(_->|\.)run\(", body)
    runner = (CPP / "runtime" / "step" / "step_runner.cpp").read_text()
    (run,) = re.findall(r"^Outputs StepRunner::run\(.*?^}", runner, re.DOTALL | re.MULTILINE)
    assert len(run.splitlines()) <= 60
    assert "dynamic_cast" not in runner
    assert not re.search(r"\.kind\(\)", runner)


def test_graphs_do_not_depend_on_the_worst_case():  # S4-37
    """The largest step has a key like every other; builders take a key and nothing besides."""
    texts = [
        p.read_text()
        for room in ("model", "graph", "runtime")
        for p in (CPP / room).rglob("*.[hc]*")
    ]
    assert len(texts) > 50
    assert not any(re.search(r"worst_?case|is_reserve|reserving", text, re.I) for text in texts)


def test_the_unified_cache_is_one_of_the_kinds(tiny):  # S4-13
    with plait.Context(tiny, n_ctx=16, n_seq_max=3) as ctx:
        assert (ctx.kv.kind, ctx.kv.n_streams, ctx.kv.n_cells) == ("unified", 1, 48)
        feed(ctx, tokens(5), 0)
        ctx.kv.seq_cp(0, 2)
        assert ctx.kv.n_used == 5
