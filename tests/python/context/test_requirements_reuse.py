"""Requirements on the reuse of plans: what it saves, and results that must not depend on it."""

import statistics
import time

import numpy as np
import plait
import pytest
from python.drive import batch, feed, same_bits, tokens

from python import gguf_writer

KINDS = {"attention": None, "recurrent": "mamba", "hybrid": "jamba", "windows": "gemma3"}


@pytest.fixture(params=KINDS)
def model(request, tiny):
    if KINDS[request.param] is None:
        return tiny
    data = request.getfixturevalue("data_dir")
    return plait.Model(data / "conformance" / KINDS[request.param] / "model.gguf")


def step(ctx, *seqs, token=7):
    return ctx.decode(batch(*(([token], seq) for seq in seqs))).logits


def nodes(ctx, *shape, **options):
    return list(ctx.graph(*shape, **options))


def test_an_unknown_shape_only_builds_a_plan(tiny):  # S0-08
    with plait.Context(tiny, n_ctx=64) as ctx, plait.Context(tiny, n_ctx=64) as knows:
        for n in (3, 1, 5, 1, 2):
            knows.graph(n)
            before = ctx.stats.plans_built
            assert same_bits(feed(ctx, tokens(n)), feed(knows, tokens(n)))
            assert ctx.stats.plans_built <= before + 1
        assert ctx.kv.to_bytes() == knows.kv.to_bytes()


def test_one_recurrent_sequence_builds_its_step_once(data_dir):  # S0-22
    model = plait.Model(data_dir / "conformance" / "mamba" / "model.gguf")
    with plait.Context(model, n_ctx=128) as ctx:
        for _ in range(64):
            step(ctx, 0)
        assert ctx.stats.plans_reused >= 60


def test_alternating_subsets_of_recurrent_sequences_find_their_plan(data_dir):  # S0-23
    model = plait.Model(data_dir / "conformance" / "mamba" / "model.gguf")
    with plait.Context(model, n_ctx=128, n_seq_max=4) as ctx:
        for seq in range(4):
            feed(ctx, tokens(3 + seq), seq)
        ctx.stats.reset()
        for i in range(50):
            step(ctx, *[(0, 1), (2, 3), (0, 2), (3, 1)][i % 4])
        assert ctx.stats.plans_reused >= 49  # of 50, regardless of the rows of their states


def test_cache_writes_need_no_reuse(tiny):  # S0-24
    written = []
    for reuse in (True, False):
        with plait.Context(tiny, n_ctx=64, graph_reuse=reuse) as ctx:
            feed(ctx, tokens(9))
            written.append((ctx.kv.to_bytes(), [n for n in nodes(ctx, 4) if n.writes_cache]))
    assert written[0] == written[1]


def test_the_graph_of_a_step_is_the_same_before_and_after_it_was_used_again(model):  # S1-02
    with plait.Context(model, n_ctx=512, n_seq_max=2) as ctx:
        feed(ctx, tokens(300), 1)
        before, built = nodes(ctx, 1), ctx.stats.plans_built
        for _ in range(100):
            step(ctx, 0)
        assert nodes(ctx, 1) == before
        assert ctx.stats.plans_built == built


def test_graphs_do_not_depend_on_written_rows(tiny):  # S1-43
    """Built anew for each; the first free row is 0, 1, 255, 256 and the last."""
    with plait.Context(tiny, n_ctx=1024, graph_reuse=False) as ctx:
        seen = []
        for head in (0, 1, 255, 256, 1020):
            feed(ctx, tokens(head - ctx.kv.n_used), logits="none") if head else None
            assert ctx.kv.n_used == head
            seen.append(nodes(ctx, 4))
        assert all(graph == seen[0] for graph in seen)


def test_rows_come_from_inputs_and_nothing_else(tiny):  # S1-41, S1-34
    with plait.Context(tiny, n_ctx=64) as ctx:
        graph = ctx.graph(4)
        for node in graph:
            names = {graph[i].name for i in node.inputs}
            if node.op == "store_rows":
                assert "write_rows" in names
            if node.op == "attend":
                assert {"runs", "run_begin"} <= names
                # The last layer computes the queries of the outputs alone.
                assert {"first", "last"} <= names or {"output_first", "output_last"} <= names


def test_steps_of_equal_shape_share_a_plan_whatever_they_hold(model):  # S0-05
    """Random rows, positions, sequences and forks: one plan, with the bits of a context that builds each anew."""
    random = np.random.default_rng(8)
    options = {"n_ctx": 512, "n_seq_max": 4}
    with (
        plait.Context(model, **options) as ctx,
        plait.Context(model, **options, graph_reuse=False) as plain,
    ):
        for seq in range(4):
            ids = tokens(int(random.integers(1, 90)), seq)
            for each in (ctx, plain):
                feed(each, ids, seq, logits="none")
        built = None
        for i in range(40):
            a, b = random.choice(4, 2, replace=False).tolist()
            for each in (ctx, plain):
                if i % 5 == 4:  # now rows are shared, and others are free
                    each.kv.seq_rm(a)
                    each.kv.seq_cp(b, a)
            first, second = tokens(2, 100 + i)
            made = batch(([first], a), ([second], b))
            assert same_bits(ctx.decode(made).logits, plain.decode(made).logits)
            built = built or ctx.stats.plans_built
        assert ctx.stats.plans_built == built
        assert plain.stats.plans_reused == 0


def test_a_reused_step_builds_splits_and_allocates_nothing(tiny):  # S1-16
    """Cutting a graph by device and placing its values are parts of building."""
    with plait.Context(tiny, n_ctx=64) as ctx:
        step(ctx, 0)
        reserved = ctx.compute_bytes
        ctx.stats.reset()
        for _ in range(10):
            step(ctx, 0)
        assert (ctx.stats.plans_built, ctx.stats.plans_reused) == (0, 10)
        assert ctx.stats.seconds["build"] == 0
        assert ctx.compute_bytes == reserved
    with plait.Context(tiny, n_ctx=64, graph_reuse=False) as ctx:
        for _ in range(10):
            step(ctx, 0)
        assert (ctx.stats.plans_built, ctx.stats.plans_reused) == (10, 0)
        assert ctx.stats.seconds["build"] > 0


def test_every_cache_holds_what_its_layer_computed(tiny):  # S1-19
    """Keys and values are found by layer and kind, not by the order of the nodes that write them."""
    with plait.Context(tiny, n_ctx=64, n_seq_max=2, type_k="f32", type_v="f32") as ctx:
        with ctx.capture("*.k_rope", "*.v") as seen:
            feed(ctx, tokens(9), 1)
        for layer in range(tiny.n_layer):
            assert same_bits(ctx.kv.keys(layer, 1), seen[f"blk.{layer}.k_rope"])
            assert same_bits(ctx.kv.values(layer, 1), seen[f"blk.{layer}.v"])
        assert not same_bits(seen["blk.0.v"], seen["blk.1.v"])


@pytest.mark.parametrize("name", ["mamba", "jamba", "rwkv7"])
def test_a_reused_plan_writes_one_state_tensor_in_several_rows(data_dir, name):  # S1-22, S1-25
    """Three sequences a step, one of them a fork: each layer's states are written in three rows."""
    model = plait.Model(data_dir / "conformance" / name / "model.gguf")
    ids = {seq: tokens(5 + seq, seq) for seq in (0, 2)}
    with plait.Context(model, n_ctx=64, n_seq_max=3) as ctx:
        for seq, prompt in ids.items():
            feed(ctx, prompt, seq, logits="none")
        ctx.kv.seq_cp(0, 1)
        ids[1] = ids[0]
        built = None
        for i in range(6):
            more = {seq: tokens(1, 10 * i + seq) for seq in range(3)}
            got = ctx.decode(batch(*((more[seq], seq) for seq in range(3)))).logits
            built = built or ctx.stats.plans_built
            for seq in range(3):
                ids[seq] = ids[seq] + more[seq]
                with plait.Context(model, n_ctx=64) as alone:
                    feed(alone, ids[seq][:-1], logits="none")
                    assert same_bits(feed(alone, ids[seq][-1:])[0], got[seq])
        assert ctx.stats.plans_built == built


@pytest.mark.parametrize("name", ["mamba", "mamba2", "rwkv6", "rwkv7"])
def test_recurrent_models_ask_for_no_positions(data_dir, name):  # S1-36
    model = plait.Model(data_dir / "conformance" / name / "model.gguf")
    with plait.Context(model, n_ctx=64) as ctx:
        inputs = {node.name for node in ctx.graph(4) if node.op == "input"}
        assert {"tokens", "read_states", "write_states"} <= inputs
        assert "positions" not in inputs
        assert np.isfinite(feed(ctx, tokens(4))).all()


def test_every_state_of_every_layer_is_written_once(any_model):  # S1-30, S4-42
    """Whatever the order of layers: caches are told apart by a field, not by where they stand."""
    with plait.Context(any_model, n_ctx=64) as ctx:
        if ctx.kv.kind == "none":
            assert not [n for n in ctx.graph(4, encode=True) if n.op == "storage"]
            return
        written = []
        for encode in (False, True) if ctx.kv.kind == "cross" else (False,):
            graph = ctx.graph(4, encode=encode)
            for node in graph:
                if node.writes_cache:
                    written += [i for i in node.inputs if graph[i].op == "storage"]
            storages = [n.index for n in graph if n.op == "storage"]
            if not encode:
                only_read = set(storages) - set(written)
                assert sorted(written) == sorted(set(written))
                # The decoder only reads the encoder output of each layer.
                assert len(only_read) == (2 * layers(graph) if ctx.kv.kind == "cross" else 0)
            else:
                mine = [i for n in graph if n.writes_cache for i in n.inputs if i in storages]
                assert sorted(mine) == storages


def layers(graph):
    return len({n.layer for n in graph if n.op == "attend"})


def test_states_are_floats_of_their_own_written_where_an_input_says(data_dir):  # S1-21
    model = plait.Model(data_dir / "conformance" / "jamba" / "model.gguf")
    with plait.Context(model, n_ctx=64, type_k="q8_0", type_v="q8_0") as ctx:
        graph = ctx.graph(4)
        types = {"store_rows": set(), "other": set()}
        for node in graph:
            if node.writes_cache:
                (storage,) = (graph[i] for i in node.inputs if graph[i].op == "storage")
                keys = node.op in ("store_rows", "store_hadamard")
                types["store_rows" if keys else "other"].add(storage.dtype)
                names = {graph[i].name for i in node.inputs}
                assert ("write_rows" if keys else "write_states") in names
        assert types == {"store_rows": {"Q8_0"}, "other": {"F32"}}


def test_every_row_belongs_to_one_sequence(tiny):  # S1-46
    """Rows are chosen by the cache, never by a caller, so an index outside or twice cannot be."""
    random = np.random.default_rng(4)
    with plait.Context(tiny, n_ctx=64, n_seq_max=4, kv_cells=100, threads=1) as ctx:
        for _ in range(300):
            seq = int(random.integers(4))
            if ctx.kv.n_free < 10 or ctx.kv.seq_len(seq) > 50:
                ctx.kv.seq_rm(seq, int(random.integers(0, 20)))
            elif random.random() < 0.2:
                ctx.kv.seq_cp(seq, (seq + 1) % 4)
            else:
                feed(ctx, tokens(int(random.integers(1, 9))), seq, logits="none")
            rows = ctx.kv.cells()["row"]
            assert len(set(rows)) == len(rows)
            assert ((rows >= 0) & (rows < ctx.kv.n_cells)).all()
    with pytest.raises(ValueError, match="2147483648 cells"):
        plait.Context(tiny, n_ctx=64, kv_cells=2**31)


def test_scattered_rows_give_the_bits_of_neighbouring_ones(tiny):  # S1-48
    """No policy costs a bit, so which rows to take is a question of speed: `fragmentation` says what it costs."""
    ids = tokens(300)
    options = {"n_ctx": 1024, "n_seq_max": 2, "kv_cells": 1000, "defrag_threshold": None}
    with plait.Context(tiny, **options) as ctx, plait.Context(tiny, **options) as fresh:
        feed(ctx, tokens(1000), 1, logits="none")
        for pos in range(0, 1000, 2):
            ctx.kv.seq_rm(1, pos, pos + 1)
        feed(ctx, ids, logits="none"), feed(fresh, ids, logits="none")
        rows = [one.kv.cells()["row"][one.kv.cells()["seqs"][:, 0]] for one in (ctx, fresh)]
        assert (np.diff(np.sort(rows[0])) == 2).sum() > 250
        assert (np.diff(np.sort(rows[1])) == 1).all()
        assert same_bits(step(ctx, 0), step(fresh, 0))
        assert ctx.kv.fragmentation > fresh.kv.fragmentation == 0


@pytest.mark.parametrize("name", ["llama-gqa", "deepseek2", "gemma3"])
def test_values_are_written_alike_with_and_without_flash_attention(data_dir, name):  # S1-51
    """There is no transposed cache: one index a token, and the first layer's bytes are the same."""
    model = plait.Model(data_dir / "conformance" / name / "model.gguf")
    written, values = [], []
    for flash in (True, False):
        with plait.Context(model, n_ctx=64, flash_attention=flash) as ctx:
            graph = ctx.graph(8)
            stores = [n for n in graph if n.op == "store_rows"]
            rows = [
                [graph[i].shape for i in n.inputs if graph[i].name == "write_rows"] for n in stores
            ]
            assert all(shape == [(8,)] for shape in rows)
            written.append([(n.shape, n.dtype) for n in stores])
            feed(ctx, tokens(9))
            read = ctx.kv.keys if name == "deepseek2" else ctx.kv.values
            values.append(read(0, 0))
    assert written[0] == written[1]
    assert same_bits(values[0], values[1])


@pytest.fixture(scope="module")
def many_small_layers(tmp_path_factory):
    """32 layers in which building costs more than computing."""
    metadata = gguf_writer.llama_metadata() | gguf_writer.vocabulary()
    metadata |= {"llama.block_count": 32}
    tensors = gguf_writer.llama_weights()
    for name in [n for n in tensors if n.startswith("blk.0.")]:
        for i in range(32):
            tensors[name.replace("blk.0.", f"blk.{i}.")] = tensors[name]
    path = tmp_path_factory.mktemp("models") / "deep.gguf"
    return plait.Model(gguf_writer.write(path, metadata, tensors))


def host_seconds(ctx):
    """What a step costs beside its computation."""
    return sum(s for phase, s in ctx.stats.seconds.items() if phase != "compute")


@pytest.mark.timing
def test_keeping_plans_is_worth_more_than_it_costs(many_small_layers):  # S0-18, S1-17
    """Single tokens, in turn with and without; the host's time is what the gain is made of."""
    pairs = [
        plait.Context(many_small_layers, n_ctx=512, threads=1, graph_reuse=reuse)
        for reuse in (True, False)
    ]
    ratios, host = [], []
    for ctx in pairs:
        step(ctx, 0)
    for _ in range(7):
        elapsed = []
        for ctx in pairs:
            ctx.stats.reset()
            start = time.perf_counter()
            for _ in range(8):
                step(ctx, 0)
            elapsed.append(time.perf_counter() - start)
        ratios.append(elapsed[1] / elapsed[0])
        host.append([host_seconds(ctx) / 8 for ctx in pairs])
    assert statistics.median(ratios) > 1.1
    saved = statistics.median(without - kept for kept, without in host)
    assert saved > 0
    assert min(kept for kept, _ in host) < 100e-6  # per step, excluding computation
    for ctx in pairs:
        ctx.close()


@pytest.mark.timing
def test_the_phases_of_a_step_are_timed_and_building_is_quick(many_small_layers):  # S1-12, S1-14
    """The plan of 32 layers is built within 20 ms and 20 us a node: ten times what it takes here."""
    with plait.Context(many_small_layers, n_ctx=64, threads=1, graph_reuse=False) as ctx:
        took = []
        for _ in range(10):
            ctx.stats.reset()
            start = time.perf_counter()
            step(ctx, 0)
            elapsed = time.perf_counter() - start
            assert set(ctx.stats.seconds) == {"place", "build", "input", "compute", "output"}
            assert min(ctx.stats.seconds.values()) > 0
            assert sum(ctx.stats.seconds.values()) < elapsed
            took.append(ctx.stats.seconds["build"])
        assert 0 < min(took) < 20e-3
        assert min(took) / len(nodes(ctx, 1)) < 20e-6


def test_a_bench_of_everything_at_once(tiny):  # S1-08
    """Prompts and steps, contexts made anew, other threads and cache types; `./dev asan` runs it too."""
    for threads in (1, 3, 2):
        for cache in ("f32", "f16", "q8_0", "q4_0"):
            for kv in ("unified", "streams"):
                options = {"type_k": cache, "type_v": cache, "kv": kv, "threads": threads}
                with plait.Context(tiny, n_ctx=128, n_seq_max=2, **options) as ctx:
                    for prompt, n in ((32, 0), (0, 8), (32, 8)):
                        ctx.kv.clear()
                        if prompt:
                            feed(ctx, tokens(prompt), logits="last")
                        for _ in range(n):
                            assert np.isfinite(step(ctx, 0, 1)).all()
                    assert ctx.stats.plans_reused > ctx.stats.plans_built


def test_every_cache_type_is_known_to_work_when_the_context_is_made(tiny):  # S0-21
    from plait import quant

    works = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
    for name in works:
        with plait.Context(tiny, n_ctx=16, type_k=name, type_v=name) as ctx:
            assert np.isfinite(feed(ctx, tokens(3))).all()
    for name in {one.lower() for one in quant.types()} - set(works):
        with pytest.raises(ValueError, match=rf'type_k.*"{name}"'):
            plait.Context(tiny, n_ctx=16, type_k=name)
