"""Drafts from a model's own layer for multi-token prediction."""

import gc
import pickle
import re
import threading

import numpy as np
import plait
import pytest
from plait.generation.drafts import DraftRequest
from plait.generation.mtp import MAX_UNREAD, _Balance
from plait.output_norm import OutputNorm
from python.drafting_models import MODELS, add_layer, alone, silent_layer, source
from python.drive import feed, tokens

from python import gguf_writer, lora_models


@pytest.fixture(scope="module", params=MODELS)
def drafting(request, data_dir, tmp_path_factory):
    """Each of the models, with a layer of random weights."""
    folder = tmp_path_factory.mktemp("drafting")
    return add_layer(source(data_dir, request.param), folder / "m.gguf")


@pytest.fixture(scope="module")
def one(data_dir, tmp_path_factory):
    """One of them."""
    folder = tmp_path_factory.mktemp("one")
    return add_layer(source(data_dir, MODELS[2]), folder / "m.gguf")


def texts(model, asked, limit, **options):
    return [one.tokens for one in plait.complete(model, asked, limit, **options)]


def asked_of(model, n, length=9):
    return [tokens(length, seed, model.n_vocab) for seed in range(n)]


def layers(ctx):
    return range(ctx.model.n_layer, ctx.model.n_layer + 1)


def rms(rows, weight, epsilon):
    rows = rows.astype(np.float64)
    return rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + epsilon) * weight


def test_the_layer_is_an_ordinary_layer_after_a_projection(drafting, tmp_path):
    """Its logits are those of a model with this layer alone, whose input was computed with NumPy."""
    model, n = drafting, drafting.n_layer
    assert model.n_mtp_layer == 1
    rng = np.random.default_rng(3)
    states = rng.standard_normal((7, model.n_embd)).astype(np.float32)
    ids = tokens(7, 5, model.n_vocab)
    embeddings = model.tensor("token_embd.weight")[ids]
    epsilon = model.metadata[f"{model.arch}.attention.layer_norm_rms_epsilon"]
    own = {
        name: model.tensor(f"blk.{n}.nextn.{name}.weight") for name in ("enorm", "hnorm", "eh_proj")
    }
    both = [rms(embeddings, own["enorm"], epsilon), rms(states, own["hnorm"], epsilon)]
    inputs = (np.concatenate(both, axis=1) @ own["eh_proj"].T).astype(np.float32)
    found = []
    for one, rows, options in (
        (model, np.concatenate([states, embeddings], axis=1), {"layers": range(n, n + 1)}),
        (alone(model, tmp_path / "alone.gguf"), inputs, {}),
    ):
        with plait.Context(one, n_ctx=16, embeddings=True, pooling="none", **options) as ctx:
            batch = plait.Batch()
            batch.add_embeddings(rows, logits="all")
            out = ctx.decode(batch)
            found.append((out.logits, out.embeddings))
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


def test_tables_and_matrices_of_the_layer_replace_those_of_the_model(data_dir, tmp_path):
    model = source(data_dir, MODELS[2])
    rng = np.random.default_rng(1)
    own = rng.standard_normal((2, model.n_vocab, model.n_embd)) / 8
    plain = add_layer(model, tmp_path / "plain.gguf")
    with_own = add_layer(
        model,
        tmp_path / "own.gguf",
        nextn__embed_tokens__weight=own[0],
        nextn__shared_head_head__weight=own[1],
    )
    rows = rng.standard_normal((3, 2 * model.n_embd)).astype(np.float32)
    found = []
    for one in (plain, with_own):
        with plait.Context(
            one,
            n_ctx=16,
            layers=range(one.n_layer, one.n_layer + 1),
            embeddings=True,
            pooling="none",
        ) as ctx:
            batch = plait.Batch()
            batch.add_embeddings(rows, logits="all")
            found.append(ctx.decode(batch))
    np.testing.assert_array_equal(found[0].embeddings, found[1].embeddings)
    np.testing.assert_allclose(
        found[1].logits, found[1].embeddings @ own[1].T, rtol=1e-3, atol=1e-3
    )
    asked = asked_of(model, 2)
    for one in (plain, with_own):
        assert texts(one, asked, 12, draft=plait.MTP(pauses=False)) == texts(model, asked, 12)


def test_the_model_itself_ignores_the_layer(drafting, data_dir):
    name = next(name for name in MODELS if source(data_dir, name).arch == drafting.arch)
    ids = tokens(12, 1, drafting.n_vocab)
    with (
        plait.Context(drafting, n_ctx=16) as ctx,
        plait.Context(source(data_dir, name), n_ctx=16) as plain,
    ):
        np.testing.assert_array_equal(feed(ctx, ids), feed(plain, ids))
        assert ctx.kv.nbytes == plain.kv.nbytes
        with pytest.raises(plait.UnsupportedError, match="no keys and values"):
            ctx.kv.keys(drafting.n_layer, 0)


@pytest.mark.parametrize("n", [1, 3])
def test_texts_are_the_same(drafting, n):
    asked = asked_of(drafting, 4)
    with plait.Context(drafting, n_ctx=64, n_seq_max=8) as ctx:
        draft = plait.MTP(n, pauses=False)
        assert texts(ctx, asked, 24, draft=draft) == texts(ctx, asked, 24)
        assert draft.acceptance.drafted > 0
        sampler = plait.Sampler(temperature=0.9, seed=4)
        want = texts(ctx, asked, 24, sampler=sampler)
        sampler.reset()
        assert texts(ctx, asked, 24, sampler=sampler, draft=draft) == want
        assert ctx.kv.n_used == 0
        draft.close()


def test_a_layer_that_predicts_what_the_model_does_is_always_right(data_dir, tmp_path):
    """A model whose prediction depends on the last token alone, and a layer that sees that token."""
    model = source(data_dir, MODELS[2])
    width = model.n_embd
    metadata = dict(model.metadata)
    tensors = {name: model.tensor(name) for name in model.tensors}
    for name in tensors:
        if "attn_output" in name or "ffn_down" in name:
            tensors[name][:] = 0
    metadata["tokenizer.ggml.eos_token_id"] = 0
    path = gguf_writer.write(tmp_path / "last.gguf", metadata, tensors)
    sees_token = np.concatenate([np.eye(width), np.zeros((width, width))], axis=1)
    norm = tensors["output_norm.weight"]
    drafting = silent_layer(plait.Model(path), tmp_path / "m.gguf", sees_token, norm)
    draft = plait.MTP(3, pauses=False)
    asked = asked_of(drafting, 3)
    assert texts(drafting, asked, 20, draft=draft) == texts(drafting, asked, 20)
    assert draft.acceptance.rate == 1
    assert draft.acceptance.tokens_per_round > 3
    sure = plait.MTP(3, p_min=1, pauses=False)
    assert texts(drafting, asked, 20, draft=sure) == texts(drafting, asked, 20)
    assert sure.acceptance.drafted == 0


def test_the_layer_reads_the_last_hidden_state(data_dir, tmp_path):
    """A layer that returns the hidden state predicts the token that the model has predicted already."""
    model = source(data_dir, MODELS[3])
    width = model.n_embd
    sees_state = np.concatenate([np.zeros((width, width)), np.eye(width)], axis=1)
    drafting = silent_layer(model, tmp_path / "m.gguf", sees_state, np.ones(width))
    seen = []

    class Watched(plait.MTP):
        def propose(self, asks):
            drafts = super().propose(asks)
            seen.extend(
                (ask.tokens[-1], draft) for ask, draft in zip(asks, drafts, strict=True) if draft
            )
            return drafts

    texts(drafting, asked_of(drafting, 3), 10, draft=Watched(2, pauses=False))
    assert len(seen) > 10
    assert all(draft == [last] * len(draft) for last, draft in seen)


def test_an_adapter_may_also_change_the_layer(drafting, tmp_path):
    """An ordinary context uses its other parts, as it skips the layer."""
    model, n = drafting, drafting.n_layer
    body = [
        name for name in model.tensors if re.fullmatch(r"blk\.\d+\.ffn_gate(_exps)?\.weight", name)
    ]
    layer = [f"blk.{n}.nextn.eh_proj.weight", f"blk.{n}.attn_output.weight"]
    weights = {name: np.empty(model.tensors[name].shape) for name in (*body, *layer)}
    deltas = lora_models.deltas(weights, list(weights), rank=2, seed=1)
    logits = []
    for part in (deltas, {key: x for key, x in deltas.items() if not key.startswith(f"blk.{n}.")}):
        path = lora_models.write_adapter(tmp_path / "a.gguf", model.arch, part)
        with plait.Context(model, n_ctx=64) as ctx:
            ctx.set_lora({model.load_lora(path): 1.0})
            logits.append(feed(ctx, tokens(9, 1, model.n_vocab)).copy())
    assert len(deltas) > len(part)
    np.testing.assert_array_equal(*logits)


def test_the_output_norm_is_that_of_the_model(any_model):
    """OutputNorm, which MTP applies to hidden states, gives the embeddings of the model."""
    model = any_model
    if "output_norm.weight" not in model.tensors:
        pytest.skip("no norm of this name")
    with plait.Context(model, n_ctx=16, embeddings=True, pooling="none") as ctx:
        if f"blk.{model.n_layer - 1}.l_out" not in ctx.value_names():
            pytest.skip("no decoder")
        with ctx.capture(f"blk.{model.n_layer - 1}.l_out") as seen:
            batch = plait.Batch()
            batch.add_sequence(tokens(6, 2, model.n_vocab), logits="all")
            out = ctx.decode(batch)
        states = seen[f"blk.{model.n_layer - 1}.l_out"]
        if out.logits is None or states.shape != out.embeddings.shape:
            pytest.skip("more than one residual stream")
    np.testing.assert_allclose(OutputNorm(model)(states), out.embeddings, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:generate. a prompt has")
def test_long_prompts_are_read_in_parts(one):
    n = 2 * MAX_UNREAD + 100
    asked = [tokens(n, 1, one.n_vocab), tokens(40, 2, one.n_vocab)]
    with plait.Context(one, n_ctx=n + 20, n_seq_max=2, n_batch=256, n_ubatch=64) as ctx:
        draft = plait.MTP(2, pauses=False)
        assert texts(ctx, asked, 12, draft=draft) == texts(ctx, asked, 12)
        assert draft.acceptance.drafted > 0


def test_shared_prefixes_and_preemption(one):
    """Positions that another sequence computed are unknown to the layer; its drafts are worse, the text is the same."""
    prefix = tokens(20, 1, one.n_vocab)
    asked = [[*prefix, *tokens(4, seed, one.n_vocab)] for seed in range(5)]
    with plait.Context(one, n_ctx=64, n_seq_max=8) as ctx:
        want = texts(ctx, asked, 16)
        for options in ({}, {"n": 2}):
            draft = plait.MTP(2, pauses=False)
            got = texts(ctx, asked, 16, draft=draft, **options)
            assert got == (want if not options else [text for text in want for _ in range(2)])
            assert draft.acceptance.drafted > 0
    with plait.Context(one, n_ctx=64, n_seq_max=4, kv_cells=70) as tight:
        scheduler = plait.Scheduler(tight, share_prefixes=False)
        draft = plait.MTP(2, pauses=False)
        requests = [scheduler.submit(ids, 16, draft=draft) for ids in asked]
        list(scheduler.run())
        assert [request.tokens for request in requests] == want
        assert scheduler.n_preempted > 0
        scheduler.close()


def test_an_engine_drafts_for_many_callers(one):
    asked = asked_of(one, 6)
    want = texts(one, asked, 12)
    draft = plait.MTP(2, pauses=False)
    with plait.Engine(one, n_ctx=64, n_seq_max=3) as engine:
        found = {}

        def call(i):
            found[i] = engine.complete_sync(asked[i], 12, draft=draft).tokens

        threads = [threading.Thread(target=call, args=(i,)) for i in range(len(asked))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [found[i] for i in range(len(asked))] == want
    assert draft.acceptance.drafted > 0


def test_one_object_serves_one_context_at_a_time(one):
    draft = plait.MTP(2, pauses=False)
    asked = asked_of(one, 1)
    with plait.Context(one, n_ctx=64) as first, plait.Context(one, n_ctx=32) as second:
        want = texts(first, asked, 8)
        for ctx in (first, second, first):
            assert texts(ctx, asked, 8, draft=draft) == want
        with plait.Scheduler(first) as scheduler:
            request = scheduler.submit(asked[0], 20, draft=draft)
            for _ in range(4):
                scheduler.step()
            with pytest.raises(ValueError, match="one MTP per context"):
                texts(second, asked, 8, draft=draft)
            list(scheduler.run())
        assert request.tokens[:8] == want[0]
    draft.close()
    draft.close()


def test_schedulers_that_take_turns_each_get_drafts_of_their_layer(data_dir, one, tmp_path):
    other = add_layer(source(data_dir, MODELS[0]), tmp_path / "m.gguf")
    draft = plait.MTP(2, pauses=False)
    with (
        plait.Context(one, n_ctx=64) as first,
        plait.Context(other, n_ctx=64) as second,
        plait.Scheduler(first) as a,
        plait.Scheduler(second) as b,
    ):
        for scheduler, ctx in ((a, first), (b, second), (a, first)):
            (asked,) = asked_of(ctx.model, 1)
            request = scheduler.submit(asked, 8, draft=draft)
            assert draft.reads == f"blk.{ctx.model.n_layer - 1}.l_out"
            scheduler.step()
            other_scheduler = b if scheduler is a else a
            with pytest.raises(ValueError, match="one MTP per context"):
                other_scheduler.submit([1, 2], 8, draft=draft)
            list(scheduler.run())
            assert request.tokens == texts(ctx.model, [asked], 8)[0]
    draft.close()


def test_a_closed_layer_is_opened_by_the_next_request(one):
    asked = asked_of(one, 3)
    draft = plait.MTP(2, pauses=False)
    with plait.Context(one, n_ctx=64, n_seq_max=3) as ctx, plait.Scheduler(ctx) as scheduler:
        running = scheduler.submit(asked[0], 24, draft=draft)
        plain = scheduler.submit(asked[1], 24)
        for _ in range(3):
            scheduler.step()
        draft.close()
        before = draft.acceptance.drafted
        scheduler.step()
        assert draft.acceptance.drafted == before > 0
        later = scheduler.submit(asked[2], 24, draft=draft)
        list(scheduler.run())
        assert draft.acceptance.drafted > before
    assert [request.tokens for request in (running, plain, later)] == texts(one, asked, 24)
    copied = pickle.loads(pickle.dumps(draft))
    assert (copied.n, copied.acceptance.drafted) == (2, 0)
    draft.close()


def test_another_capture_is_refused_and_nothing_changes(one):
    asked = asked_of(one, 1)
    with plait.Context(one, n_ctx=64) as ctx:
        want = texts(ctx, asked, 8)
        with (
            ctx.capture("l_out.0"),
            pytest.raises(ValueError, match="another capture"),
        ):
            texts(ctx, asked, 8, draft=plait.MTP())
        assert ctx.kv.n_used == 0
        assert texts(ctx, asked, 8, draft=plait.MTP(pauses=False)) == want


def test_models_without_such_a_layer_are_refused(tiny, demo_model):
    for model in (tiny, demo_model):
        assert model.n_mtp_layer == 0
        with pytest.raises(plait.UnsupportedError, match="no layer for multi-token prediction"):
            plait.generate(model, "a", draft=plait.MTP())
    with (
        plait.Context(tiny, n_ctx=16) as ctx,
        pytest.raises(
            ValueError, match=r"expected a range within range\(0, 2\) that is not empty,"
        ),
    ):
        plait.Context(tiny, n_ctx=16, layers=layers(ctx))


@pytest.mark.parametrize("begin_end", [(0, 1), (1, 1), (1, 2), (-1, 0), (0, 0)])
def test_a_context_runs_the_layer_or_the_others(one, begin_end):
    begin, end = (one.n_layer + x for x in begin_end)
    if begin_end == (0, 1):
        plait.Context(one, n_ctx=16, layers=range(begin, end)).close()
        return
    if begin_end == (-1, 0):
        plait.Context(one, n_ctx=16, layers=range(begin, end)).close()
        return
    with pytest.raises(ValueError, match=f"or one of the layers {one.n_layer} to {one.n_layer}"):
        plait.Context(one, n_ctx=16, layers=range(begin, end))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: plait.MTP(0), ValueError, "MTP: n is 0; it must be at least 1"),
        (lambda: plait.MTP(p_min=-1), ValueError, "p_min is -1; it must be between 0 and 1"),
        (lambda: plait.MTP(pauses=3), TypeError, "MTP: pauses"),
        (lambda: plait.MTP("a"), TypeError, "MTP: n"),
    ],
)
def test_invalid_arguments_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_an_unknown_generation_gets_no_drafts(one):
    draft = plait.MTP(pauses=False)
    with plait.Context(one, n_ctx=16) as ctx:
        draft.attach(ctx)
        assert draft.propose([DraftRequest("new", [1, 2, 3], 2)]) == [[]]
        draft.release("new")
        draft.close()


def test_contexts_are_freed(one):
    gc.collect()
    draft = plait.MTP(pauses=False)
    with plait.Context(one, n_ctx=32) as ctx:
        texts(ctx, asked_of(one, 2), 6, draft=draft)
        head = draft._head._ctx
        assert head.kv.n_used == 0
        draft.close()
        assert head.closed


def drive(balance, seconds, n):
    """Run steps of which those with drafts take seconds[True] a token, and return the kind of each."""
    kinds, now, length = [], 0.0, 10
    for _ in range(n):
        kind = balance.drafts({"a": length}, now)
        kinds.append(kind)
        grown = 2 if kind else 1
        length += grown
        now += seconds[kind] * grown
    return kinds


def test_drafting_pauses_while_it_does_not_pay():
    slow = drive(_Balance(), {True: 2.0, False: 1.0}, 2000)
    assert sum(slow) < 100
    fast = drive(_Balance(), {True: 0.5, False: 1.0}, 2000)
    assert sum(fast) > 1900
    assert not all(fast)  # it still measures
    changing = _Balance()
    drive(changing, {True: 2.0, False: 1.0}, 700)
    assert sum(drive(changing, {True: 0.5, False: 1.0}, 2000)) > 1200


def test_pauses_do_not_change_the_text(one, monkeypatch):
    monkeypatch.setattr("plait.generation.mtp.TRIAL", {True: 2, False: 2})
    monkeypatch.setattr("plait.generation.mtp.FIRST_PERIOD", 3)
    asked = asked_of(one, 3)
    with plait.Context(one, n_ctx=128, n_seq_max=3) as ctx:
        draft = plait.MTP(2)
        assert texts(ctx, asked, 60, draft=draft) == texts(ctx, asked, 60)
    assert 0 < draft.acceptance.rounds < 3 * 60
