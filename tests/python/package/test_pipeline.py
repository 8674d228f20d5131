"""A model that is spread over processes has the bits of one context, also after a process died."""

import os
import signal

import numpy as np
import plait
import pytest
from python.drive import batch, same_bits, tokens
from python.package.test_ray import PATIENCE, start

from python import gguf_writer, lora_models

pytest.importorskip("ray", reason="plait[ray] is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

OPTIONS = {"n_ctx": 64, "n_seq_max": 4}
PROMPTS = [tokens(n, seed=n) for n in (5, 9, 3, 12)]


@pytest.fixture(scope="module")
def cluster():
    import ray

    with pytest.MonkeyPatch.context() as patch:
        for name, value in PATIENCE.items():
            patch.setenv(name, value)
        start(ray)
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def shared(cluster, tiny_path):
    from plait.ray import Pipeline

    with Pipeline(tiny_path, state_every=4, **OPTIONS) as pipeline:
        yield pipeline


@pytest.fixture
def pipeline(shared):
    shared.kv.clear()
    return shared


@pytest.fixture
def ctx(tiny):
    with plait.Context(tiny, **OPTIONS) as ctx:
        yield ctx


def kill(pipeline, stage):
    os.kill(pipeline.pids()[stage], signal.SIGKILL)


def prompts():
    return batch(*((ids, seq) for seq, ids in enumerate(PROMPTS)))


def step(i, seqs=(3, 0, 1)):
    return batch(*(([5 + i + seq], seq) for seq in seqs))


def same_caches(pipeline, ctx):
    return all(
        same_bits(getattr(pipeline.kv, part)(layer, seq), getattr(ctx.kv, part)(layer, seq))
        for part in ("keys", "values")
        for layer in range(ctx.model.n_layer)
        for seq in range(ctx.n_seq_max)
    )


def test_logits_are_those_of_one_context(pipeline, ctx):
    assert [*map(len, pipeline.layers)] == [1, 1]
    for made in (prompts(), step(0), step(1), step(2, (2,))):
        assert same_bits(pipeline.decode(made).logits, ctx.decode(made).logits)
    last = plait.Batch()
    for seq in (2, 0):
        last.add_sequence([7, 8, 9], seq=seq)  # one output each
    assert same_bits(pipeline.decode(last).logits, ctx.decode(last).logits)
    assert same_caches(pipeline, ctx)
    assert sum(pipeline.kv.nbytes) == ctx.kv.nbytes


def test_steering_reaches_every_stage(pipeline, ctx):
    pipeline.decode(prompts())
    ctx.decode(prompts())
    for kv in (pipeline.kv, ctx.kv):
        kv.seq_cp(0, 2)
        assert kv.seq_rm(3, 4) is True
        kv.seq_add(1, 4, None, 3)
        assert kv.evict(2, [1, 3]) == 2
    shared = plait.Batch()
    shared.add(9, seq=[2], logits=True)
    shared.add(4, seq=[3], logits=True)
    shared.add(6, seq=[1], logits=True)
    assert same_bits(pipeline.decode(shared).logits, ctx.decode(shared).logits)
    assert pipeline.kv.seq_pos_max(3) == ctx.kv.seq_pos_max(3) == 4
    assert pipeline.kv.seq_pos_min(1) == 0
    assert same_caches(pipeline, ctx)
    pipeline.kv.seq_keep(2)
    assert [pipeline.kv.seq_pos_max(s) for s in range(4)] == [-1, -1, 5, -1]


def test_positions_that_only_some_stages_hold(cluster, data_dir):
    """The first stage has only windowed layers, which free the positions that have left their window."""
    from plait.ray import Pipeline

    path = data_dir / "conformance" / "gemma3" / "model.gguf"
    if not path.exists():
        pytest.skip(f"no {path}")
    model, options = plait.Model(path), {"n_ctx": 64, "n_seq_max": 2}
    layers = [range(1), range(1, model.n_layer)]
    with (
        Pipeline(path, layers=layers, **options) as pipeline,
        plait.Context(model, **options) as ctx,
    ):
        for each in (pipeline, ctx):
            for token in range(1, 41):
                each.decode(batch(([token], 0)))
            assert each.kv.seq_pos_min(0) == 0
            assert each.kv.evict(0, [2, 3]) == 2
            assert each.kv.evict(0, [60]) == 0
        last = batch(([7], 0))
        assert same_bits(pipeline.decode(last).logits, ctx.decode(last).logits)
        assert pipeline.kv.seq_pos_min(1) == ctx.kv.seq_pos_min(1) == -1


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """Paths of a model and of two adapters: of all matrices, and of those of the last layer."""
    folder = tmp_path_factory.mktemp("adapted")
    metadata, weights = lora_models.model("llama")
    path = folder / "base.gguf"
    gguf_writer.write(path, metadata, weights)
    every = lora_models.matrices(weights)
    adapters = []
    for i, targets in enumerate((every, [name for name in every if ".ffn_" in name])):
        tensors = lora_models.deltas(weights, targets, rank=4, seed=i)
        adapters.append(folder / f"{i}.lora.gguf")
        lora_models.write_adapter(adapters[-1], metadata["general.architecture"], tensors)
    return path, adapters


@pytest.fixture
def steered(cluster, adapted):
    """A pipeline that often saves its states, a context of the same model, paths of adapters, these, and a vector."""
    from plait.ray import Pipeline

    path, files = adapted
    model = plait.Model(path)
    vector = np.random.default_rng(3).normal(size=(model.n_layer, model.n_embd)).astype(np.float32)
    with (
        Pipeline(path, state_every=4, **OPTIONS) as pipeline,
        plait.Context(model, **OPTIONS) as ctx,
    ):
        yield pipeline, ctx, files, [model.load_lora(file) for file in files], vector


def test_adapters_and_control_vectors_reach_every_stage(steered):
    """For all sequences and for one, before and after saved states, and in a stage that died."""
    pipeline, ctx, files, (first, second), vector = steered
    plain = ctx.decode(prompts()).logits.copy()
    assert same_bits(pipeline.decode(prompts()).logits, plain)
    for kv in (pipeline.kv, ctx.kv):
        kv.clear()
    pipeline.set_lora({files[0]: 0.5, files[1]: -1.0})
    ctx.set_lora({first: 0.5, second: -1.0})
    adapted = ctx.decode(prompts()).logits
    assert same_bits(pipeline.decode(prompts()).logits, adapted)
    assert not same_bits(adapted, plain)
    for one in (pipeline, ctx):
        one.set_control_vector(vector, 0)
        one.set_control_vector(-vector, 0, seq=[1, 3])
    pipeline.set_lora({files[1]: 2.0}, seq=0)
    ctx.set_lora({second: 2.0}, seq=0)
    for i in range(9):
        if i in (0, 4, 7):
            kill(pipeline, i % 2)
        if i == 6:
            for one in (pipeline, ctx):
                one.set_control_vector(None, seq=3)
                one.set_lora(None, seq=[0, 1])
        assert same_bits(pipeline.decode(step(i)).logits, ctx.decode(step(i)).logits), i
    assert same_caches(pipeline, ctx)
    with pytest.raises(ValueError, match="finite"):
        pipeline.set_lora({files[0]: float("nan")})
    with pytest.raises(ValueError, match="control vector"):
        pipeline.set_control_vector(vector[:, :-1])
    with pytest.raises(FileNotFoundError):
        pipeline.set_lora({"/nothing.gguf": 1.0})
    assert same_bits(pipeline.decode(step(9)).logits, ctx.decode(step(9)).logits)


def test_only_steering_that_has_an_effect_is_kept(steered):
    """A stage that died gets the same bits, whose adapters are summed in the order of their first use."""
    pipeline, ctx, files, (first, second), vector = steered
    for i in range(9):
        pipeline.set_lora({files[i % 2]: 1.0})
        for one in (pipeline, ctx):
            one.set_control_vector(i * vector, 0)
            one.set_control_vector(vector, 0, seq=[1, 2])
    pipeline.set_lora({files[1]: 0.7, files[0]: 0.3})
    ctx.set_lora({second: 0.7, first: 0.3})
    for i in range(4):
        assert same_bits(pipeline.decode(step(i)).logits, ctx.decode(step(i)).logits)
    assert [each.method for each in pipeline._steering].count("set_control_vector") == 2
    assert len(pipeline._steering) == 3
    kill(pipeline, 0)
    assert same_bits(pipeline.decode(step(4)).logits, ctx.decode(step(4)).logits)


def test_tokens_of_several_sequences_stay_together(pipeline, ctx):
    made = plait.Batch()
    for token in (5, 6):
        made.add(token, seq=[0, 1], logits=True)
    made.add(7, seq=[1], logits=True)
    made.add(8, seq=[0], pos=2, logits=True)
    made.add(9, seq=[3], pos=4, logits=True)
    assert same_bits(pipeline.decode(made).logits, ctx.decode(made).logits)
    assert same_caches(pipeline, ctx)


def test_embeddings_that_attend_in_both_directions(pipeline, ctx):
    rows = np.random.default_rng(4).normal(size=(9, ctx.model.n_embd)).astype(np.float32)
    made = {}
    for both in (True, False):
        made[both] = plait.Batch()
        for part, seq in ((rows[:4], [0, 1]), (rows[4:6], 2), (rows[6:], 3)):
            made[both].add_embeddings(part, seq=seq, logits="all", both_directions=both)
    causal = ctx.decode(made[False]).logits.copy()
    ctx.kv.clear()
    found = pipeline.decode(made[True]).logits
    assert same_bits(found, ctx.decode(made[True]).logits)
    assert not same_bits(found, causal)
    assert same_caches(pipeline, ctx)


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.goal("G3")
def test_the_work_of_a_killed_stage_is_done_again(pipeline, ctx, stage):
    """Before the first state of a stage, between two, and twice in a row."""
    assert same_bits(pipeline.decode(prompts()).logits, ctx.decode(prompts()).logits)
    for i in range(7):
        before = pipeline.pids()
        if i in (0, 3, 4):
            kill(pipeline, stage)
        assert same_bits(pipeline.decode(step(i)).logits, ctx.decode(step(i)).logits)
        if i in (0, 3, 4):
            assert pipeline.pids()[stage] != before[stage]
            assert pipeline.pids()[1 - stage] == before[1 - stage]
    kill(pipeline, stage)
    pipeline.kv.seq_cp(1, 2)
    ctx.kv.seq_cp(1, 2)
    assert same_bits(pipeline.decode(step(9, (2,))).logits, ctx.decode(step(9, (2,))).logits)
    assert same_caches(pipeline, ctx)


def test_all_stages_may_die(pipeline, ctx):
    pipeline.decode(prompts())
    ctx.decode(prompts())
    for pid in pipeline.pids():
        os.kill(pid, signal.SIGKILL)
    assert same_bits(pipeline.decode(step(1)).logits, ctx.decode(step(1)).logits)
    assert same_caches(pipeline, ctx)


def test_lost_rows_are_computed_again_from_tokens(pipeline, ctx):
    """As if the node that held the rows between the stages were gone."""
    for made in (prompts(), step(0)):
        pipeline.decode(made)
        ctx.decode(made)
    pipeline._replay(everything=True)
    assert same_caches(pipeline, ctx)
    assert same_bits(pipeline.decode(step(1)).logits, ctx.decode(step(1)).logits)


def test_a_refused_call_changes_nothing(pipeline, ctx):
    pipeline.decode(prompts())
    ctx.decode(prompts())
    wrong = plait.Batch()
    wrong.add_sequence([4, 5], seq=0)
    wrong.add_sequence([4, 5], seq=1, pos=3)
    with pytest.raises(plait.BatchError, match="position"):
        pipeline.decode(wrong)
    full = batch((tokens(60), 1), ([4], 0))  # 9 + 60 cells of 64; the other sequence would fit
    with pytest.raises(plait.CacheFull, match="sequence 1 needs 60 more cells"):
        pipeline.decode(full)
    with pytest.raises(ValueError, match="sequence"):
        pipeline.kv.seq_cp(0, 17)
    with pytest.raises(plait.BatchError, match="empty"):
        pipeline.decode(plait.Batch())
    assert same_caches(pipeline, ctx)
    assert same_bits(pipeline.decode(step(1)).logits, ctx.decode(step(1)).logits)


def test_misuse(cluster, tiny_path):
    from plait.ray import Pipeline

    for options, message in (
        ({"devices": ["cpu"] * 3}, "3 stages for 2 layers"),
        ({"devices": []}, "0 stages for 2 layers"),
        ({"layers": [range(2)], "devices": ["cpu"] * 2}, "1 ranges of layers for 2 devices"),
        ({"layers": [range(1), range(2)]}, "consecutive ranges from 0 to 2"),
        ({"layers": [range(1)]}, "consecutive ranges from 0 to 2"),
        ({"retries": 0}, "retries is 0"),
        ({"pooling": "mean"}, "pooling is not an option"),
        ({"backend": "cpu"}, "use devices"),
        ({"n_ctx": 0}, "n_ctx"),
    ):
        with pytest.raises(ValueError, match=message):
            Pipeline(tiny_path, **options)
    with pytest.raises(FileNotFoundError):
        Pipeline("/nothing.gguf")


def test_a_closed_pipeline_says_so(cluster, tiny_path):
    from plait.ray import Pipeline

    with Pipeline(tiny_path, ["cpu"], embeddings=True, **OPTIONS) as pipeline:
        out = pipeline.decode(prompts())
        assert out.embeddings.shape[0] == out.logits.shape[0] == sum(map(len, PROMPTS))
    with pytest.raises(ValueError, match="closed"):
        pipeline.decode(prompts())
    pipeline.close()


def test_layers_are_divided_by_their_size(cluster, demo_model):
    from plait.ray.pipeline import ranges_of

    for n in range(1, demo_model.n_layer + 1):
        found = ranges_of(demo_model, n)
        assert len(found) == n
        assert [i for run in found for i in run] == [*range(demo_model.n_layer)]
        assert max(map(len, found)) - min(map(len, found)) <= 1


def test_groups_share_no_sequence(cluster):
    from plait.ray.pipeline import _independent

    rng = np.random.default_rng(1)
    for _ in range(50):
        n = int(rng.integers(1, 20))
        rows = rng.integers(0, 8, (n, 2)).astype(np.int32)
        rows[rng.random(n) < 0.7, 1] = -1
        groups = _independent(rows, int(rng.integers(1, 5)))
        assert np.array_equal(np.sort(np.concatenate(groups)), np.arange(n))
        held = [{int(s) for s in rows[one].ravel() if s >= 0} for one in groups]
        for i, one in enumerate(held):
            assert all(one.isdisjoint(other) for other in held[i + 1 :])
