"""Encoders: bidirectional attention, and no state between calls."""

import numpy as np
import plait
import pytest

from python import gguf_writer, lora_models

WIDTH, N_HEADS, N_FFN, N_LAYERS, N_POSITIONS = 32, 4, 48, 2, 24
N_VOCAB = gguf_writer.N_VOCAB


def bert_metadata(arch="bert"):
    return {
        "general.architecture": arch,
        f"{arch}.block_count": N_LAYERS,
        f"{arch}.context_length": N_POSITIONS,
        f"{arch}.embedding_length": WIDTH,
        f"{arch}.feed_forward_length": N_FFN,
        f"{arch}.attention.head_count": N_HEADS,
        f"{arch}.attention.layer_norm_epsilon": 1e-12,
        f"{arch}.attention.causal": False,
        "tokenizer.ggml.token_type_count": 2,
    }


class Random:
    def __init__(self, seed=1):
        self.rng = np.random.default_rng(seed)

    def matrix(self, n_out, n_in):
        return (self.rng.standard_normal((n_out, n_in)) / np.sqrt(n_in)).astype(np.float32)

    def vector(self, n, around=0.0):
        return (around + 0.1 * self.rng.standard_normal(n)).astype(np.float32)

    def norm(self, name):
        return {f"{name}.weight": self.vector(WIDTH, 1.0), f"{name}.bias": self.vector(WIDTH)}


def bert_weights():
    some = Random()
    weights = {
        "token_embd.weight": some.matrix(N_VOCAB, WIDTH),
        "token_types.weight": some.matrix(2, WIDTH),
        "position_embd.weight": some.matrix(N_POSITIONS, WIDTH),
    } | some.norm("token_embd_norm")
    for i in range(N_LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights[f"blk.{i}.{name}.weight"] = some.matrix(WIDTH, WIDTH)
            weights[f"blk.{i}.{name}.bias"] = some.vector(WIDTH)
        weights |= {
            f"blk.{i}.ffn_up.weight": some.matrix(N_FFN, WIDTH),
            f"blk.{i}.ffn_up.bias": some.vector(N_FFN),
            f"blk.{i}.ffn_down.weight": some.matrix(WIDTH, N_FFN),
            f"blk.{i}.ffn_down.bias": some.vector(WIDTH),
        }
        weights |= some.norm(f"blk.{i}.attn_output_norm") | some.norm(f"blk.{i}.layer_output_norm")
    return weights


def head_weights(n_scores):
    some = Random(2)
    return {
        "cls.weight": some.matrix(WIDTH, WIDTH),
        "cls.bias": some.vector(WIDTH),
        "cls.output.weight": some.matrix(n_scores, WIDTH),
        "cls.output.bias": some.vector(n_scores),
    }


def tiny_bert(path, metadata=None, weights=None):
    """Write a tiny BERT. `metadata`: keys to set, or to omit where None."""
    keys = bert_metadata() | gguf_writer.vocabulary() | (metadata or {})
    keys = {k: v for k, v in keys.items() if v is not None}
    return gguf_writer.write(path, keys, bert_weights() | (weights or {}))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return plait.Model(tiny_bert(tmp_path_factory.mktemp("bert") / "bert.gguf"))


def batch(*sequences, want="all"):
    made = plait.Batch()
    for seq, ids in enumerate(sequences):
        made.add_sequence(ids, seq=seq, pos=0, logits=want)
    return made


def embed(model, sequences, call="encode", n_seq_max=None, **options):
    with plait.Context(model, n_ctx=256, n_seq_max=n_seq_max or len(sequences), **options) as ctx:
        return np.array(getattr(ctx, call)(batch(*sequences)).embeddings)


SENTENCES = [list(range(3, 3 + n)) for n in (7, 1, 12, 24, 3)]


@pytest.fixture(scope="module")
def minilm(data_dir):
    return plait.Model(data_dir / "models" / "all-MiniLM-L6-v2-f16.gguf")


@pytest.fixture(scope="module")
def stored(data_dir):
    return np.load(data_dir / "models" / "all-MiniLM-L6-v2-ref.npz")


@pytest.fixture(scope="module")
def sentences(stored):
    lengths = stored["token_lens"]
    return [ids[:n].tolist() for ids, n in zip(stored["token_ids"], lengths, strict=True)]


class TestMiniLm:
    @pytest.mark.parametrize("against", ["embeddings_st", "embeddings_llamacpp"])
    def test_every_sentence_is_as_stored(self, minilm, stored, sentences, against):
        got = embed(minilm, sentences)  # pooled as the file specifies
        got /= np.linalg.norm(got, axis=1, keepdims=True)
        assert (got * stored[against]).sum(axis=1).min() >= 0.9999

    def test_order_and_size_of_batches_change_no_bit(self, minilm, sentences):
        wanted = embed(minilm, sentences, n_ubatch=512)
        order = np.random.default_rng(3).permutation(len(sentences))
        assert (embed(minilm, [sentences[i] for i in order]) == wanted[order]).all()
        alone = [embed(minilm, [ids])[0] for ids in sentences]
        assert (np.array(alone) == wanted).all()
        # The longest sentence has 71 tokens, more than a microbatch, but is not split.
        assert (embed(minilm, sentences, n_ubatch=16) == wanted).all()
        assert (embed(minilm, sentences, threads=1) == wanted).all()

    def test_the_text_is_found_among_others_by_meaning(self, minilm):
        texts = ["A cat sits on the mat.", "A kitten rests on the rug.", "Stock prices fell again."]
        ids = [minilm.tokenizer.encode(text, add_special=True).tolist() for text in texts]
        cat, kitten, stocks = embed(minilm, ids)
        assert cat @ kitten > 2 * (cat @ stocks)


class TestNothingIsRemembered:
    def test_there_is_no_cache(self, bert):  # S4-17, S4-22
        with plait.Context(bert, n_ctx=256, n_seq_max=8) as ctx:
            assert ctx.kv.kind == "none"
            assert ctx.kv.nbytes == 0
            assert ctx.kv.n_cells == 0
            ctx.encode(batch(*SENTENCES))
            assert ctx.kv.n_used == 0
            assert ctx.kv.seq_pos_max(0) == -1

    def test_decode_equals_encode(self, bert):  # S4-22
        wanted = embed(bert, SENTENCES)
        assert (embed(bert, SENTENCES, call="decode") == wanted).all()
        with plait.Context(bert, n_ctx=256, n_seq_max=8) as ctx:
            for call in (ctx.decode, ctx.encode, ctx.decode):  # none continues another
                assert (call(batch(*SENTENCES)).embeddings == wanted).all()

    def test_the_second_call_of_a_shape_builds_nothing(self, bert, tmp_path):  # S1-45
        head = head_weights(2)
        ranks = plait.Model(tiny_bert(tmp_path / "m.gguf", {"bert.pooling_type": 4}, head))
        for pooling in ("none", "mean", "cls", "last", "rank"):
            options = {"n_ctx": 256, "n_seq_max": 8, "pooling": pooling}
            model = ranks if pooling == "rank" else bert
            with plait.Context(model, **options) as ctx, plait.Context(model, **options) as fresh:
                ctx.encode(batch([4, 5, 6], [7, 8]))
                ctx.stats.reset()
                got = ctx.encode(batch([9, 10, 11], [12, 13])).embeddings
                assert ctx.stats.plans_built == 0
                assert ctx.stats.plans_reused > 0
                assert (got == fresh.encode(batch([9, 10, 11], [12, 13])).embeddings).all()


class TestPooling:
    def test_each_kind_is_made_of_the_tokens(self, bert):
        tokens = embed(bert, SENTENCES)  # the file specifies no pooling
        assert tokens.shape == (sum(map(len, SENTENCES)), WIDTH)
        ends = np.cumsum([len(ids) for ids in SENTENCES])
        of_sentence = np.split(tokens, ends[:-1])
        for pooling, of in {
            "mean": lambda x: x.mean(axis=0),
            "cls": lambda x: x[0],
            "last": lambda x: x[-1],
        }.items():
            wanted = [of(x) for x in of_sentence]
            np.testing.assert_allclose(embed(bert, SENTENCES, pooling=pooling), wanted, atol=1e-6)

    @pytest.mark.parametrize("kind", [1, 2, 3])
    def test_the_file_determines_the_pooling(self, tmp_path, bert, kind):
        model = plait.Model(tiny_bert(tmp_path / "m.gguf", {"bert.pooling_type": kind}))
        with plait.Context(model, n_ctx=64) as ctx:
            assert ctx.pooling == ("none", "mean", "cls", "last")[kind]
            wanted = embed(bert, SENTENCES[:1], pooling=ctx.pooling)
            assert (ctx.encode(batch(SENTENCES[0])).embeddings == wanted).all()

    def test_rows_are_the_requested_ones(self, bert):
        with plait.Context(bert, n_ctx=64) as ctx:
            every = np.array(ctx.encode(batch(SENTENCES[0])).embeddings)
            last = ctx.encode(batch(SENTENCES[0], want="last"))
            assert last.indices.tolist() == [len(SENTENCES[0]) - 1]
            assert (last.embeddings == every[-1:]).all()


class TestScores:
    @pytest.mark.parametrize("n_scores", [1, 3])
    def test_a_head_scores_the_first_token(self, tmp_path, n_scores):
        head = head_weights(n_scores)
        model = plait.Model(tiny_bert(tmp_path / "m.gguf", {"bert.pooling_type": 4}, head))
        pooled = embed(model, SENTENCES, pooling="cls").astype(np.float64)
        wanted = np.tanh(pooled @ head["cls.weight"].T + head["cls.bias"])
        wanted = wanted @ head["cls.output.weight"].T + head["cls.output.bias"]
        got = embed(model, SENTENCES)
        assert got.shape == (len(SENTENCES), n_scores)
        np.testing.assert_allclose(got, wanted, atol=1e-5)
        assert (embed(model, SENTENCES, n_ubatch=2) == got).all()

    def test_either_matrix_may_be_absent(self, tmp_path):
        for names in (["cls.weight", "cls.bias"], ["cls.output.weight"]):
            head = {name: head_weights(2)[name] for name in names}
            model = plait.Model(tiny_bert(tmp_path / "m.gguf", weights=head))
            wanted = embed(model, SENTENCES, pooling="cls") @ head[names[0]].T
            if len(names) == 2:
                wanted = np.tanh(wanted + head["cls.bias"])
            got = embed(model, SENTENCES, pooling="rank")
            np.testing.assert_allclose(got, wanted, atol=1e-5)

    def test_more_sequences_than_tokens_of_a_microbatch(self, tmp_path):
        model = plait.Model(tiny_bert(tmp_path / "m.gguf", weights=head_weights(2)))
        many = [[3 + i] for i in range(30)]
        got = embed(model, many, pooling="rank", n_ubatch=4)
        alone = [embed(model, [ids], pooling="rank")[0] for ids in many]
        assert (got == np.array(alone)).all()

    def test_adapters_of_single_sequences(self, tmp_path):
        """The matrices of the head have them too."""
        head = head_weights(2)
        model = plait.Model(tiny_bert(tmp_path / "m.gguf", weights=head))
        targets = ["cls.weight", "blk.0.attn_output.weight"]
        deltas = lora_models.deltas(bert_weights() | head, targets, rank=2, seed=1)
        path = lora_models.write_adapter(tmp_path / "a.gguf", "bert", deltas)
        adapter = model.load_lora(path)
        together = plait.Batch()
        for seq, ids in enumerate(SENTENCES):
            together.add_sequence(ids, seq=seq)
        options = {"n_ctx": 64, "n_seq_max": len(SENTENCES), "pooling": "rank"}
        with plait.Context(model, **options) as ctx:
            plain = np.array(ctx.encode(together).embeddings)
            ctx.set_lora({adapter: 1.0})
            adapted = np.array(ctx.encode(together).embeddings)
            for seq in range(len(SENTENCES)):
                ctx.set_lora(None)
                ctx.set_lora({adapter: 1.0}, seq=seq)
                want = plain.copy()
                want[seq] = adapted[seq]
                assert (want[seq] != plain[seq]).all()
                assert (ctx.encode(together).embeddings == want).all()

    def test_without_a_head_there_are_none(self, bert, tiny):
        for model in (bert, tiny):
            with pytest.raises(ValueError, match=r"pooling.*no"):
                plait.Context(model, n_ctx=64, pooling="rank", embeddings=True)


class TestRefusals:
    @pytest.mark.parametrize(
        ("metadata", "names"),
        [
            ({"bert.context_length": None}, "bert.context_length"),
            ({"bert.attention.layer_norm_epsilon": None}, "layer_norm_epsilon"),
            ({"bert.attention.causal": True}, "attention.causal"),
            ({"bert.pooling_type": 9}, "pooling_type"),
            ({"bert.context_length": 25}, "position_embd"),
            ({"tokenizer.ggml.token_type_count": None}, "token_type_count"),
            ({"tokenizer.ggml.token_type_count": 3}, "token_types"),
            ({"bert.attention.head_count": 5}, "head_count"),
            ({"bert.block_count": 1}, "block_count"),
        ],
    )
    def test_missing_or_contradictory_keys_are_refused(self, tmp_path, metadata, names):
        with pytest.raises(plait.ModelError, match=names):
            plait.Model(tiny_bert(tmp_path / "m.gguf", metadata))

    def test_a_missing_tensor_is_refused(self, tmp_path):
        weights = bert_weights()
        for name in ("token_embd_norm.weight", "blk.1.layer_output_norm.weight"):
            rest = {k: v for k, v in weights.items() if k != name}
            path = gguf_writer.write(
                tmp_path / "m.gguf", bert_metadata() | gguf_writer.vocabulary(), rest
            )
            with pytest.raises(plait.ModelError, match=name):
                plait.Model(path)

    def test_a_head_of_another_width(self, tmp_path):
        head = {"cls.output.weight": np.zeros((2, WIDTH + 1), np.float32)}
        with pytest.raises(plait.ModelError, match=r"cls\.output\.weight"):
            plait.Model(tiny_bert(tmp_path / "m.gguf", weights=head))

    def test_sequences_longer_than_a_context(self, bert):
        with plait.Context(bert, n_ctx=10, n_ubatch=4) as ctx:
            assert ctx.encode(batch(SENTENCES[0])).embeddings.shape == (7, WIDTH)
            with pytest.raises(plait.BatchError, match="12 tokens, n_ctx is 10"):
                ctx.encode(batch(SENTENCES[2]))

    def test_bidirectional_decoders(self, tiny):
        with plait.Context(tiny, n_ctx=10, n_ubatch=4, causal=False, embeddings=True) as ctx:
            assert ctx.encode(batch(SENTENCES[0])).embeddings.shape == (7, tiny.n_embd)
            with pytest.raises(plait.CacheFull, match="12"):
                ctx.encode(batch(SENTENCES[2]))

    def test_positions_beyond_the_table(self, bert):
        with plait.Context(bert, n_ctx=64) as ctx:
            ctx.encode(batch(list(range(3, 3 + N_POSITIONS))))
            with pytest.raises(plait.BatchError, match=str(N_POSITIONS)):
                ctx.encode(batch(list(range(3, 4 + N_POSITIONS))))
