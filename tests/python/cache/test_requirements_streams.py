"""Requirements on many sequences at once, with a unified cache and with streams."""

import re
import threading
import time
from pathlib import Path

import numpy as np
import plait
import pytest
from python.drive import batch, feed, same_bits, tokens

from python import gguf_writer

ROOT = Path(__file__).parents[3]
KINDS = ["unified", "streams"]


@pytest.fixture(params=KINDS)
def kv(request):
    return request.param


@pytest.mark.parametrize("backend", ["metal", "cuda"])
def test_other_devices_are_refused_by_name(tiny, backend):  # S2-12, S2-13, S2-20
    with pytest.raises(ValueError, match=rf'"cpu".*got "{backend}"'):
        plait.Context(tiny, n_ctx=16, backend=backend)
    with plait.Context(tiny, n_ctx=16) as ctx:
        assert np.isfinite(feed(ctx, tokens(3))).all()


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("n_seqs", [1, 2, 5, 32])
def test_each_sequence_of_a_step_gets_the_same_results_as_alone(
    tiny, kv, n_seqs, flash
):  # S2-11, S2-15
    """Sequences of different lengths, so masks and padding must be right for each."""  # S2-16, S2-33
    options = {"n_ctx": 64, "flash_attention": flash}
    with plait.Context(tiny, n_seq_max=n_seqs, kv=kv, **options) as ctx:
        parts = [(tokens(1 + 5 * seq % 29, seq), seq) for seq in range(n_seqs)]
        ctx.decode(batch(*parts))
        together = ctx.decode(batch(*(([7], seq) for seq in range(n_seqs)))).logits
    for (ids, seq), row in zip(parts, together, strict=True):
        with plait.Context(tiny, **options) as alone:
            feed(alone, ids)
            assert same_bits(feed(alone, [7])[0], row), seq


@pytest.mark.parametrize("flash", [True, False])
def test_attention_takes_queries_of_every_sequence_at_once(tiny, kv, flash):  # S2-31
    """[tokens, heads, head]: sequences are concatenated along axis 0 without padding."""
    with plait.Context(tiny, n_ctx=64, n_seq_max=4, kv=kv, flash_attention=flash) as ctx:
        graph = ctx.graph(n_tokens=16, n_seqs=4, n_outputs=16)
        attends = [node for node in graph if node.op == "attend"]
        assert len(attends) == tiny.n_layer
        for node in attends:
            shapes = {graph[i].name: graph[i].shape for i in node.inputs}
            assert node.shape[0] == shapes["first"][0] == shapes["last"][0] == 16
            assert shapes["token_begin"] == shapes["run_begin"] == (4 + 1,)


def test_a_copy_gives_the_logits_of_its_source(tiny, kv):  # S2-17
    with plait.Context(tiny, n_ctx=64, n_seq_max=3, kv=kv) as ctx:
        feed(ctx, tokens(20), 1)
        ctx.kv.seq_cp(1, 2)
        a, b = ctx.decode(batch(([7, 8], 1), ([7, 8], 2))).logits.reshape(2, 2, -1)
        assert same_bits(a, b)


def test_rows_beyond_the_count_of_a_step_change_nothing(tiny, kv):  # S2-35
    """A plan for eight tokens runs with five; the other three hold old data."""
    with plait.Context(tiny, n_ctx=64, n_seq_max=2, kv=kv) as ctx:
        want = feed(ctx, tokens(5))
        ctx.kv.clear()
        poison = plait.Batch()
        poison.add_embeddings(np.full((8, tiny.n_embd), np.nan, np.float32), seq=1, logits="all")
        assert np.isnan(ctx.decode(poison).logits).all()
        assert same_bits(feed(ctx, tokens(5)), want)


def test_a_shared_prefix_is_kept_once_where_rows_can_be_shared(tiny):  # S2-37
    used = {}
    for kv in KINDS:
        with plait.Context(tiny, n_ctx=1024, n_seq_max=16, kv=kv) as ctx:
            assert ctx.kv.kind == kv
            feed(ctx, tokens(1024), logits="none")
            for seq in range(1, 16):
                ctx.kv.seq_cp(0, seq)
            used[kv] = ctx.kv.n_used
    assert used == {"unified": 1024, "streams": 16 * 1024}
    guide = (ROOT / "docs" / "concepts" / "cache.md").read_text()
    assert re.search(r"`\"unified\"`.*sequences share prefixes", guide)
    assert re.search(r"`\"streams\"`.*every sequence needs its rows", guide)


@pytest.mark.parametrize("seqs", [(2, 3), (0, 2, 5), (5, 0), (4,), (3, 1, 4, 0, 2)])
def test_any_streams_run_in_one_microbatch(tiny, seqs):  # S2-43, S2-44
    with plait.Context(tiny, n_ctx=32, n_seq_max=6, kv="streams") as ctx:
        for seq in range(6):
            feed(ctx, tokens(4 + seq, seq), seq)
        ctx.stats.reset()
        got = ctx.decode(batch(*(([9], seq) for seq in seqs))).logits
        assert ctx.stats.microbatches == 1
        for row, seq in zip(got, seqs, strict=True):
            with plait.Context(tiny, n_ctx=32) as alone:
                feed(alone, tokens(4 + seq, seq))
                assert same_bits(feed(alone, [9])[0], row)


def test_no_arrangement_of_a_batch_costs_a_microbatch_more(tiny, kv):  # S2-57, S2-19
    """No warning is therefore needed."""
    random = np.random.default_rng(5)
    with plait.Context(tiny, n_ctx=64, n_seq_max=8, kv=kv, n_ubatch=16) as ctx:
        for _ in range(100):
            owners = np.repeat(np.arange(8), random.integers(0, 9, 8))
            random.shuffle(owners)
            if len(owners) == 0:
                continue
            made = plait.Batch()
            for seq in owners.tolist():
                made.add(7, seq=seq)
            ctx.kv.clear()
            ctx.stats.reset()
            ctx.decode(made)
            assert ctx.stats.microbatches == -(-len(owners) // 16)


def test_copies_wait_for_what_is_being_computed(tiny, kv):  # S2-48
    """While one thread decodes, copies made by another have all tokens of a call or none."""
    with plait.Context(tiny, n_ctx=512, n_seq_max=2, kv=kv, threads=4) as ctx:
        done = threading.Event()
        lengths, copied = [], []

        def copies():
            while not done.is_set():
                ctx.kv.seq_rm(1)
                ctx.kv.seq_cp(0, 1)
                lengths.append(ctx.kv.seq_len(1))
                copied.append(ctx.kv.values(1, 1))

        thread = threading.Thread(target=copies)
        thread.start()
        try:
            for i in range(50):
                feed(ctx, tokens(8, i), 0, logits="none")
        finally:
            done.set()
            thread.join()
        assert {length % 8 for length in lengths} == {0}
        computed = ctx.kv.values(1, 0)
        assert [len(values) for values in copied] == lengths
        assert all(same_bits(values, computed[: len(values)]) for values in copied)
        ctx.kv.seq_rm(1)
        ctx.kv.seq_cp(0, 1)
        a, b = ctx.decode(batch(([7], 0), ([7], 1))).logits
        assert same_bits(a, b)


def test_copies_move_rows_in_streams_and_none_in_one_table(tiny, kv):  # S2-46
    """Rows are counted once for all layers, keys and values: `nbytes / n_cells` is the size of one."""
    with plait.Context(tiny, n_ctx=64, n_seq_max=3, kv=kv) as ctx:
        feed(ctx, tokens(20), 0)
        row_bytes = tiny.n_layer * 2 * ctx.kv.keys(0, 0)[0].size * 2  # f16
        assert ctx.kv.nbytes == ctx.kv.n_cells * row_bytes
        for target, (p0, p1), n in ((1, (0, None), 20), (2, (0, 13), 13)):
            ctx.stats.reset()
            ctx.kv.seq_cp(0, target, p0, p1)
            assert ctx.stats.rows_copied == (n if kv == "streams" else 0)
            for layer in range(tiny.n_layer):
                assert same_bits(ctx.kv.keys(layer, target), ctx.kv.keys(layer, 0)[:n])
                assert same_bits(ctx.kv.values(layer, target), ctx.kv.values(layer, 0)[:n])
        used = {seq: set(ctx.kv.cells()["row"][ctx.kv.cells()["seqs"][:, seq]]) for seq in (0, 1)}
        assert (used[0] & used[1] == set()) == (kv == "streams")


def test_sequences_stay_in_long_runs_of_rows(tiny, kv):  # S2-03, S2-05
    """Why one table is as fast as streams: prompts and joint steps leave few breaks in a sequence's rows."""
    n_seqs, length, steps = 16, 64, 100
    with plait.Context(tiny, n_ctx=256, n_seq_max=n_seqs, kv=kv) as ctx:
        ctx.decode(batch(*((tokens(length, seq), seq) for seq in range(n_seqs)), logits="none"))
        for i in range(steps):
            ctx.decode(batch(*(([5 + i], seq) for seq in range(n_seqs)), logits="none"))
        cells = ctx.kv.cells()
        for seq in range(n_seqs):
            own = cells[cells["seqs"][:, seq]]
            rows = own["row"][np.argsort(own["pos"][:, 0])]
            breaks = int((np.diff(rows) != 1).sum())
            assert breaks <= (0 if kv == "streams" else (length + steps) // 32)
        assert ctx.kv.fragmentation == 0


def test_a_copied_stream_goes_on_in_the_next_row(tiny):  # S2-51
    with plait.Context(tiny, n_ctx=64, n_seq_max=2, kv="streams") as ctx:
        feed(ctx, tokens(20), 0)
        feed(ctx, tokens(3), 1)
        ctx.kv.seq_cp(0, 1)
        feed(ctx, tokens(4), 1)
        cells = ctx.kv.cells()
        rows = np.sort(cells["row"][cells["stream"] == 1])
        assert rows.tolist() == list(range(64, 64 + 24))


def test_a_copy_can_be_followed(tiny, caplog):  # S2-52
    with plait.Context(tiny, n_ctx=64, n_seq_max=2, kv="streams") as ctx:
        feed(ctx, tokens(20), 0)
        with caplog.at_level(5, logger="plait"):
            ctx.kv.seq_cp(0, 1)
        assert "cache: cells 0 to 19 copied to 64 to 83" in caplog.text
        cells = ctx.kv.cells()
        assert cells["row"][cells["stream"] == 1].tolist() == list(range(64, 84))
        assert [(ctx.kv.seq_pos_min(seq), ctx.kv.seq_pos_max(seq)) for seq in (0, 1)] == [
            (0, 19)
        ] * 2


def test_one_word_for_each_thing():  # S2-23, S2-24
    """The glossary defines the terms, and documentation uses no synonyms."""
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    words = [
        word
        for cell in re.findall(r"^\| (.*?) \|", glossary, re.M)
        for word in re.findall(r"\w+", cell)
    ]
    assert {"sequence", "stream", "cell", "microbatch", "position"} <= set(words)
    assert all(
        words.count(word) == 1 for word in ("sequence", "stream", "row", "cell", "microbatch")
    )
    stub = (ROOT / "python" / "plait" / "_core.pyi").read_text()
    for other in ("slot", "virtual", "ubatches", "lane", "conversation id"):
        assert not re.search(rf"\b{other}", stub), other
    assert hasattr(plait.KVCache, "n_streams")


def test_the_kind_of_cache_is_an_argument(tiny, kv, monkeypatch):  # S2-25
    monkeypatch.setenv("LLAMA_SET_ROWS", "0")
    with plait.Context(tiny, n_ctx=16, n_seq_max=2, kv=kv) as ctx:
        assert (ctx.kv.kind, ctx.kv.n_streams) == (kv, 2 if kv == "streams" else 1)


def test_both_kinds_are_in_the_demonstration(capsys, kv):  # S2-58
    from plait.demo import show

    show.main(["--kv", kv])
    assert f"The cache ({kv})" in capsys.readouterr().out


# -- speed: processor time of one thread, which others on the machine hardly change. Where the memory of a context lies
# changes its speed by several percent, so contexts are made anew, and the best of them counts. ------------------------


def prompt_seconds(ctx, n_seqs, length):
    ctx.kv.clear()
    parts = [(tokens(length, seq), seq) for seq in range(n_seqs)]
    start = time.process_time()
    ctx.decode(batch(*parts, logits="none"))
    return time.process_time() - start


def step_seconds(ctx, n_seqs, steps=8):
    made = plait.Batch()
    for seq in range(n_seqs):
        made.add(7, seq=seq, logits=True)
    start = time.process_time()
    for _ in range(steps):
        ctx.decode(made)
    return time.process_time() - start


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.parametrize("length", [64, 512])
def test_one_table_is_as_fast_as_streams(tiny, length):  # S2-03, S2-05
    """Sequences without shared rows form long runs in both kinds, so neither is slower."""
    n_seqs = 16
    options = {"n_ctx": length + 1000, "n_seq_max": n_seqs, "n_batch": 1 << 15, "threads": 1}
    prompts, steps = [], []
    for _ in range(4):
        both = [plait.Context(tiny, kv=kv, **options) for kv in KINDS]
        for _ in range(4):
            prompts.append([prompt_seconds(ctx, n_seqs, length) for ctx in both])
            steps.append([step_seconds(ctx, n_seqs, 100) for ctx in both])
        for ctx in both:
            ctx.close()
    for seconds in (prompts, steps):
        unified, streams = (min(column) for column in zip(*seconds, strict=True))
        assert unified < streams / 0.95


@pytest.fixture(scope="module")
def two_layers_of_3b(tmp_path_factory):
    """Two layers of Qwen 2.5 3B, the model of the measurement, and a proportional part of its output matrix."""
    width, n_ffn, n_kv, n_vocab = 2048, 11008, 256, 8640

    def matrix(n_out, n_in):
        return np.full((n_out, n_in), 1 / n_in, np.float16)

    metadata = gguf_writer.llama_metadata() | {
        "tokenizer.ggml.model": "no_vocab",
        "llama.vocab_size": n_vocab,
        "llama.context_length": 4096,
        "llama.embedding_length": width,
        "llama.feed_forward_length": n_ffn,
        "llama.attention.head_count": 16,
        "llama.attention.head_count_kv": 2,
        "llama.rope.dimension_count": 128,
    }
    norm = np.ones(width, np.float32)
    weights = {"token_embd.weight": matrix(n_vocab, width), "output_norm.weight": norm}
    for i in range(2):
        weights |= {
            f"blk.{i}.attn_norm.weight": norm,
            f"blk.{i}.attn_q.weight": matrix(width, width),
            f"blk.{i}.attn_k.weight": matrix(n_kv, width),
            f"blk.{i}.attn_v.weight": matrix(n_kv, width),
            f"blk.{i}.attn_output.weight": matrix(width, width),
            f"blk.{i}.ffn_norm.weight": norm,
            f"blk.{i}.ffn_gate.weight": matrix(n_ffn, width),
            f"blk.{i}.ffn_up.weight": matrix(n_ffn, width),
            f"blk.{i}.ffn_down.weight": matrix(width, n_ffn),
        }
    path = tmp_path_factory.mktemp("3b") / "model.gguf"
    return plait.Model(gguf_writer.write(path, metadata, weights))


@pytest.mark.timing
@pytest.mark.slow
def test_steps_after_long_prompts_keep_three_quarters_of_their_rate(two_layers_of_3b, kv):  # S2-04
    """32 sequences, after nothing and after 2,048 tokens each. Weights are floats like the cache, so that attention
    costs what it does beside the other work in the measurement: a tenth of its multiplications."""
    n_seqs, length = 32, 2048
    options = {"n_ctx": length + 64, "n_batch": length, "threads": 1}
    empty, full = [], []
    for _ in range(3):
        with plait.Context(two_layers_of_3b, n_seq_max=n_seqs, kv=kv, **options) as ctx:
            step_seconds(ctx, n_seqs, 1)
            empty += [step_seconds(ctx, n_seqs, 2) for _ in range(2)]
            ctx.kv.clear()
            feed(ctx, tokens(length), logits="none")
            state = ctx.kv.to_bytes(seq=0)
            for seq in range(1, n_seqs):
                ctx.kv.from_bytes(state, seq=seq)
            full += [step_seconds(ctx, n_seqs, 2) for _ in range(2)]
    assert min(empty) / min(full) > 0.75


@pytest.mark.timing
def test_steps_read_the_rows_of_their_own_sequence(tiny, kv):  # S2-01
    """A step costs the same with 31 other sequences of 480 tokens in the cache."""
    options = {"n_ctx": 512, "threads": 1, "kv": kv}
    with (
        plait.Context(tiny, n_seq_max=1, **options) as alone,
        plait.Context(tiny, n_seq_max=32, **options) as among,
    ):
        for seq in range(1, 32):
            feed(among, tokens(480, seq), seq, logits="none")
        seconds = []
        for _ in range(7):
            for ctx in (alone, among):
                ctx.kv.seq_rm(0)
                feed(ctx, tokens(4))
            seconds.append([step_seconds(ctx, 1, 40) for ctx in (alone, among)])
        # Attention over all 14,884 rows would cost more than ten times as much.
        one, other = (min(column) for column in zip(*seconds, strict=True))
        assert other < 1.5 * one


def test_128_requests_run_to_their_end_in_either_way_to_take_rows(tiny):  # S2-09
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 288, int(n)).tolist() for n in rng.integers(1, 40, 128)]
    texts = []
    for options in (
        {"kv": "unified", "n_seq_max": 8, "n_ctx": 16384, "kv_cells": 16384},
        {"kv": "streams", "n_seq_max": 32, "n_ctx": 4096},
    ):
        said = [list[int]() for _ in prompts]
        with plait.Context(tiny, **options) as ctx:
            for event in plait.generate(ctx, prompts, max_tokens=24):
                said[event.index].append(event.token)
            assert ctx.kv.n_used == 0
        texts.append(said)
    assert texts[0] == texts[1]
