"""Encoder-decoders: decode() attends to the output of encode() of the same sequences."""

import numpy as np
import plait
import pytest
from python.drive import batch, feed, same_bits, tokens

SHORT, LONG, OTHER = (tokens(n, seed=n, n_vocab=512) for n in (4, 23, 9))
ANSWER = [0, *tokens(8, seed=3, n_vocab=512)]


@pytest.fixture(scope="module")
def t5(data_dir):
    return plait.Model(data_dir / "conformance" / "t5" / "model.gguf")


def context(model, **options):
    return plait.Context(model, **{"n_ctx": 64, "n_seq_max": 4, "type_k": "f32", **options})


def encode(ctx, *questions):
    """Encode each question as the input of the sequence with its index."""
    return ctx.encode(batch(*((ids, seq) for seq, ids in enumerate(questions))))


def answer(model, question, ids=ANSWER, **options):
    with context(model, **options) as ctx:
        encode(ctx, question)
        return np.array(feed(ctx, ids))


class TestMemory:
    @pytest.mark.parametrize("kv", ["unified", "streams"])
    def test_kind(self, t5, kv):  # S4-16
        with context(t5, kv=kv) as ctx:
            assert ctx.kv.kind == "cross"
            assert ctx.kv.n_streams == (4 if kv == "streams" else 1)

    def test_positions_are_the_decoders(self, t5):
        with context(t5) as ctx:
            encode(ctx, LONG)
            assert ctx.kv.seq_pos_max(0) == -1
            feed(ctx, ANSWER)
            assert ctx.kv.seq_pos_max(0) == len(ANSWER) - 1
            encode(ctx, SHORT)  # the decoder's part of the sequence stays
            assert ctx.kv.seq_pos_max(0) == len(ANSWER) - 1

    def test_an_encoder_layer_keeps_nothing(self, t5):
        with context(t5) as ctx:
            encode(ctx, LONG)
            feed(ctx, ANSWER)
            assert ctx.kv.keys(t5.n_layer - 1, 0).shape == (len(ANSWER), 4, 16)
            with pytest.raises(plait.UnsupportedError, match=f"layer {t5.n_layer}"):
                ctx.kv.keys(t5.n_layer, 0)


class TestSequences:
    @pytest.mark.parametrize("kv", ["unified", "streams"])
    def test_inputs_of_several_lengths(self, t5, kv):  # S4-29
        wanted = [answer(t5, question) for question in (LONG, SHORT, OTHER)]
        assert not np.allclose(wanted[0], wanted[1], atol=0.1)  # the encoder's input matters
        with context(t5, kv=kv, n_ubatch=7) as ctx:
            encode(ctx, LONG, SHORT, OTHER)
            rows = ctx.decode(batch(*((ANSWER, seq) for seq in range(3)))).logits
            assert same_bits(rows, np.concatenate(wanted))

    def test_inputs_of_several_calls(self, t5):
        with context(t5) as ctx:
            encode(ctx, LONG)
            ctx.encode(batch((SHORT, 1)))
            assert same_bits(feed(ctx, ANSWER, 0), answer(t5, LONG))
            ctx.encode(batch((OTHER, 2)))
            assert same_bits(feed(ctx, ANSWER, 1), answer(t5, SHORT))

    def test_a_cut_of_the_answer_changes_no_bit(self, t5):
        wanted = answer(t5, LONG)
        with context(t5) as ctx:
            encode(ctx, LONG)
            rows = [np.array(feed(ctx, [token])) for token in ANSWER]
            assert same_bits(np.concatenate(rows), wanted)

    def test_the_encoder_sees_both_ways(self, t5):
        first = answer(t5, LONG)
        assert not np.allclose(answer(t5, [*LONG[:-1], LONG[-1] + 1]), first, atol=1e-3)

    def test_distances_count_not_positions(self, t5):
        wanted = answer(t5, LONG, ANSWER + SHORT)
        with context(t5) as ctx:
            encode(ctx, LONG)
            feed(ctx, ANSWER)
            ctx.kv.seq_add(0, 0, None, 11)
            np.testing.assert_allclose(feed(ctx, SHORT), wanted[len(ANSWER) :], atol=1e-5)

    def test_no_plan_is_built_twice(self, t5):
        with context(t5) as ctx:
            built = []
            for _ in range(3):
                encode(ctx, LONG, SHORT)
                feed(ctx, ANSWER)
                ctx.kv.clear()
                built.append(ctx.stats.plans_built)
            assert built[0] == built[1] == built[2]


class TestEdits:
    def test_another_encode_replaces(self, t5):
        with context(t5) as ctx:
            encode(ctx, LONG)
            feed(ctx, ANSWER)
            encode(ctx, SHORT)
            ctx.kv.seq_rm(0, 1, None)
            wanted = np.array(answer(t5, SHORT))
            # The keys of the first token depend on the old input; its own row does not.
            assert not same_bits(feed(ctx, ANSWER[1:]), wanted[1:])
            ctx.kv.seq_rm(0, 0, None)
            encode(ctx, SHORT)
            assert same_bits(feed(ctx, ANSWER), wanted)

    def test_a_copy_shares_it(self, t5):
        with context(t5) as ctx:
            encode(ctx, LONG)
            feed(ctx, ANSWER)
            ctx.kv.seq_cp(0, 1)
            ctx.kv.seq_rm(0)
            wanted = answer(t5, LONG, ANSWER + SHORT)[len(ANSWER) :]
            assert same_bits(feed(ctx, SHORT, 1), wanted)
            with pytest.raises(plait.BatchError):
                feed(ctx, ANSWER, 0)

    def test_a_copy_before_anything_was_decoded(self, t5):
        with context(t5) as ctx:
            encode(ctx, LONG)
            for seq in (1, 2, 3):
                ctx.kv.seq_cp(0, seq)
            rows = ctx.decode(batch(*((ANSWER, seq) for seq in range(4)))).logits
            assert same_bits(rows, np.concatenate([answer(t5, LONG)] * 4))

    @pytest.mark.parametrize("drop", ["seq_rm", "clear"])
    def test_removing_everything_drops_it(self, t5, drop):
        with context(t5) as ctx:
            encode(ctx, LONG)
            feed(ctx, ANSWER)
            ctx.kv.seq_rm(0, 3, None)  # a part does not
            feed(ctx, ANSWER[3:])
            ctx.kv.seq_rm(0) if drop == "seq_rm" else ctx.kv.clear()
            with pytest.raises(plait.BatchError, match="encode its input first"):
                feed(ctx, ANSWER)

    def test_a_state_takes_it_along(self, t5):
        with context(t5) as ctx, context(t5) as restored:
            encode(ctx, LONG, SHORT)
            feed(ctx, ANSWER, 1)
            restored.kv.from_bytes(ctx.kv.to_bytes())
            assert same_bits(feed(restored, ANSWER, 0), answer(t5, LONG))
            wanted = answer(t5, SHORT, ANSWER + OTHER)[len(ANSWER) :]
            assert same_bits(feed(restored, OTHER, 1), wanted)


class TestRefusals:
    def test_decoding_without_an_input(self, t5):
        with context(t5) as ctx:
            encode(ctx, LONG)
            with pytest.raises(plait.BatchError, match=r"sequence 2 .*encode its input first"):
                ctx.decode(batch((ANSWER, 0), (ANSWER, 2)))
            assert ctx.kv.n_used == 0

    def test_an_input_longer_than_a_context(self, t5):
        with context(t5, n_ctx=16) as ctx:
            encode(ctx, SHORT)
            with pytest.raises(plait.CacheFull, match=r"23.*16"):
                encode(ctx, LONG)
            assert same_bits(feed(ctx, ANSWER), answer(t5, SHORT))  # as if nothing had happened

    def test_an_input_longer_than_a_batch(self, t5):
        with context(t5, n_batch=16) as ctx, pytest.raises(plait.BatchError, match="n_batch"):
            encode(ctx, LONG)

    def test_the_encoder_returns_the_requested_vectors(self, t5):
        with context(t5, embeddings=True) as ctx:
            out = encode(ctx, LONG, SHORT)
            assert out.embeddings.shape == (len(LONG) + len(SHORT), t5.n_embd)
            alone = ctx.encode(batch((SHORT, 3)))
            assert same_bits(alone.embeddings, out.embeddings[len(LONG) :])
            assert out.logits is None
