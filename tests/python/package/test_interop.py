"""Arrays of other libraries as input and output, without copies where possible."""

import numpy as np
import plait
import pytest


class Lent:
    """A tensor of a library that supports only DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def decode(model, batch):
    with plait.Context(model, n_ctx=16, n_seq_max=2) as ctx:
        return ctx.decode(batch)


def test_batches_over_lent_arrays_are_read_when_decoded(tiny):
    tokens = np.array([5, 6, 7], np.int32)
    lent = [
        Lent(tokens), Lent(np.arange(3, dtype=np.int32)), Lent(np.zeros(3, np.int32)),
        np.array([False, False, True]),
    ]  # fmt: skip
    batch = plait.Batch.from_arrays(*lent)
    first = decode(tiny, batch).logits
    tokens[0] = 9
    second = decode(tiny, batch).logits
    assert not np.array_equal(first, second)  # nothing was copied
    other = plait.Batch()
    other.add_sequence(Lent(np.array([9, 6, 7], np.int64)))
    np.testing.assert_array_equal(decode(tiny, other).logits, second)


def test_embeddings_may_be_lent(tiny):
    rows = np.random.default_rng(0).standard_normal((3, tiny.n_embd)).astype(np.float32)
    outs = []
    for given in (rows, Lent(rows)):
        batch = plait.Batch()
        batch.add_embeddings(given)
        outs.append(decode(tiny, batch).logits)
    np.testing.assert_array_equal(*outs)


def test_outputs_are_lent_without_a_copy(tiny):
    batch = plait.Batch()
    batch.add_sequence([5, 6, 7], logits="all")
    out = decode(tiny, batch)
    taken = np.from_dlpack(out)
    assert np.shares_memory(taken, out.logits)
    assert taken.shape == (3, tiny.n_vocab)
    with plait.Context(tiny, n_ctx=16, embeddings=True, pooling="mean") as ctx:
        pooled = ctx.decode(batch)
    np.testing.assert_array_equal(np.from_dlpack(pooled), pooled.embeddings)
    del out
    assert np.isfinite(taken).all()  # the memory lives as long as the array


def test_arrays_that_cannot_be_shared_are_named(tiny):
    class Broken:
        def __dlpack__(self, **_):
            raise BufferError("on another device")

        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(TypeError, match="tokens"):
        plait.Batch().add_sequence(Broken())


def test_torch(tiny):
    torch = pytest.importorskip("torch")
    batch = plait.Batch()
    batch.add_sequence(torch.tensor([5, 6, 7]))
    out = decode(tiny, batch)
    tensor = torch.from_dlpack(out)
    tensor[0, 0] = 42
    assert out.logits[0, 0] == 42
    over = plait.Batch.from_arrays(
        torch.tensor([5, 6, 7], dtype=torch.int32), torch.arange(3, dtype=torch.int32), None,
        torch.tensor([False, False, True]),
    )  # fmt: skip
    assert decode(tiny, over).logits.shape == (1, tiny.n_vocab)


def test_jax(tiny):
    jnp = pytest.importorskip("jax.numpy")
    batch = plait.Batch()
    batch.add_sequence(jnp.array([5, 6, 7]))
    assert jnp.from_dlpack(decode(tiny, batch).logits).shape == (1, tiny.n_vocab)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("kv", ["unified", "streams"])
def test_caches_are_exported(tiny, tmp_path, kv, suffix):
    if suffix == ".safetensors":
        load = pytest.importorskip("safetensors.numpy").load_file
    else:
        load = lambda path: dict(np.load(path))  # noqa: E731
    with plait.Context(tiny, n_ctx=16, n_seq_max=2, kv=kv) as ctx:
        batch = plait.Batch()
        batch.add_sequence([5, 6, 7], seq=1)
        ctx.decode(batch)
        path = tmp_path / f"cache{suffix}"
        ctx.kv.export(path, seq=1)
        held = load(path)
        assert sorted(held) == sorted(
            f"blk.{i}.{part}" for i in range(2) for part in ("keys", "values")
        )
        for layer in range(2):
            np.testing.assert_array_equal(held[f"blk.{layer}.keys"], ctx.kv.keys(layer, 1))
            np.testing.assert_array_equal(held[f"blk.{layer}.values"], ctx.kv.values(layer, 1))
        with pytest.raises(ValueError, match=r"\.npz or \.safetensors"):
            ctx.kv.export(tmp_path / "cache.txt", seq=1)
