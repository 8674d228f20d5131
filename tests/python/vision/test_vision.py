"""Image encoders compared with transformers, and their inputs and files when these are damaged."""

import io
import os
import struct
import sys
import threading
from pathlib import Path

import numpy as np
import plait
import pytest
from plait.vision import images
from python.vision import towers
from python.vulkan_device import needs_vulkan

from python import gguf_writer

pillow = pytest.importorskip("PIL.Image", reason="images need Pillow")
EXPECTED = Path(__file__).with_name("expected.npz")
CASES = [(family, size) for family in towers.FAMILIES for size in towers.SIZES]
STORED = 6  # every so many columns are stored


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vision")


@pytest.fixture(scope="session")
def paths(folder):
    return {family: towers.write(folder, family) for family in towers.FAMILIES}


@pytest.fixture
def vision(paths):
    with plait.Vision(paths["qwen2vl"]) as vision:
        yield vision


def assert_close(got, want):
    """Compare relative to the size of the embeddings."""
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.parametrize(("family", "size"), CASES)
def test_embeddings_equal_the_stored_ones_of_transformers(paths, family, size):
    with plait.Vision(paths[family]) as vision:
        got = vision.encode(towers.image(*size))
    with np.load(EXPECTED) as stored:
        assert_close(got.rows[:, ::STORED], stored[f"{family}-{size[0]}x{size[1]}"])
    assert got.rows.shape[1] == vision.n_embd
    assert got.rows.dtype == np.float32


@pytest.mark.parametrize(("family", "size"), CASES)
def test_embeddings_equal_those_of_transformers(paths, family, size):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    from python.vision import reference

    with plait.Vision(paths[family]) as vision:
        assert_close(vision.encode(towers.image(*size)).rows, reference.encode(family, *size))


@pytest.mark.parametrize("family", towers.FAMILIES)
def test_half_precision_files_load(folder, family):
    metadata, tensors = towers.FAMILIES[family]()
    halves = {n: t.astype(np.float16) if t.ndim > 1 else t for n, t in tensors.items()}
    path = gguf_writer.write(folder / f"{family}-f16.gguf", metadata, halves)
    size = towers.SIZES[0]
    with plait.Vision(path) as vision, np.load(EXPECTED) as stored:
        want = stored[f"{family}-{size[0]}x{size[1]}"]
        assert (
            np.abs(vision.encode(towers.image(*size)).rows[:, ::STORED] - want).max()
            < 2e-2 * np.abs(want).max()
        )


def test_positions_count_rows_and_columns_from_the_start(vision):
    image = vision.encode(towers.image(40, 80))
    assert image.grid == (5, 10)
    assert len(image) == 50
    positions = image.positions(7)
    assert positions.shape == (50, 4)
    np.testing.assert_array_equal(positions[13], [7, 8, 10, 0])
    assert image.span == 10


def test_positions_of_other_families_are_consecutive(paths):
    with plait.Vision(paths["pixtral"]) as vision:
        image = vision.encode(towers.image(16, 12))
    assert image.grid == (4, 3)
    assert len(image) == 15  # and three breaks
    np.testing.assert_array_equal(image.positions(3), np.arange(3, 18))


@pytest.fixture
def text_model(tmp_path):
    """A Qwen2-VL text model whose embeddings are as wide as those of the encoder."""
    rng = np.random.default_rng(5)
    width, vocab = towers.N_EMBD, gguf_writer.N_VOCAB

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    weights = {
        "token_embd.weight": 4 * matrix(vocab, width),
        "output_norm.weight": np.ones(width, np.float32),
    }
    for name in ("attn_q", "attn_k", "attn_v"):
        weights[f"blk.0.{name}.weight"] = matrix(width, width)
        weights[f"blk.0.{name}.bias"] = np.zeros(width, np.float32)
    weights |= {
        "blk.0.attn_norm.weight": np.ones(width, np.float32),
        "blk.0.attn_output.weight": matrix(width, width),
        "blk.0.ffn_norm.weight": np.ones(width, np.float32),
        "blk.0.ffn_gate.weight": matrix(32, width),
        "blk.0.ffn_up.weight": matrix(32, width),
        "blk.0.ffn_down.weight": matrix(width, 32),
    }
    metadata = {
        "general.architecture": "qwen2vl",
        "qwen2vl.block_count": 1,
        "qwen2vl.context_length": 128,
        "qwen2vl.embedding_length": width,
        "qwen2vl.feed_forward_length": 32,
        "qwen2vl.attention.head_count": 2,
        "qwen2vl.attention.head_count_kv": 2,
        "qwen2vl.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen2vl.rope.freq_base": 10000.0,
        "qwen2vl.rope.dimension_sections": np.array([2, 2, 2, 0], np.int32),
        **gguf_writer.vocabulary(),
    }
    return plait.Model(gguf_writer.write(tmp_path / "text.gguf", metadata, weights))


def test_a_text_model_reads_an_image(vision, text_model):
    def logits(picture):
        with plait.Context(text_model, n_ctx=64, type_k="f32", type_v="f32") as ctx:
            batch = plait.Batch()
            batch.add_sequence([5, 6, 7], logits="none")
            ctx.decode(batch)
            batch = plait.Batch()
            end = vision.encode(picture).add_to(batch, start=3)
            ctx.decode(batch)
            batch = plait.Batch()
            batch.add_sequence([8, 9])
            found = ctx.decode(batch).logits.copy()
            assert end == 3 + 5
            assert ctx.kv.seq_pos_max(0) == end + 1
            return found

    one, other = logits(towers.image(40, 40)), logits(towers.image(40, 39)[::-1])
    assert np.isfinite(one).all()
    assert np.abs(one - other).max() > 1e-3


def test_all_kinds_of_images_give_the_same_rows(vision, tmp_path):
    pixels = towers.image(30, 50)
    picture = pillow.fromarray(pixels)
    picture.save(tmp_path / "image.png")
    want = vision.encode(pixels).rows
    for same in (
        picture,
        tmp_path / "image.png",
        str(tmp_path / "image.png"),
        (tmp_path / "image.png").read_bytes(),
    ):
        np.testing.assert_array_equal(vision.encode(same).rows, want)


def test_transparency_is_blended_onto_white(vision):
    pixels = np.concatenate([towers.image(20, 20), np.zeros((20, 20, 1), np.uint8)], axis=2)
    white = np.full((20, 20, 3), 255, np.uint8)
    got = vision.encode(pillow.fromarray(pixels, "RGBA")).rows
    np.testing.assert_array_equal(got, vision.encode(white).rows)


def test_files_are_turned_as_their_orientation_says(vision):
    data = io.BytesIO()
    picture = pillow.fromarray(towers.image(24, 56))
    exif = picture.getexif()
    exif[0x0112] = 6  # turn by a quarter, clockwise
    picture.save(data, "PNG", exif=exif)
    want = vision.encode(np.rot90(towers.image(24, 56), -1)).rows
    np.testing.assert_array_equal(vision.encode(data.getvalue()).rows, want)


def test_images_are_cached_by_their_content(vision):
    first = vision.encode(towers.image(20, 30))
    assert vision.encode(towers.image(20, 30).copy()) is first
    assert vision.encode(towers.image(30, 20)) is not first
    assert not first.rows.flags.writeable


def test_the_cache_keeps_as_many_images_as_asked(paths):
    with plait.Vision(paths["qwen2vl"], n_cached=1) as vision:
        first = vision.encode(towers.image(20, 30))
        vision.encode(towers.image(30, 20))
        again = vision.encode(towers.image(20, 30))
        assert again is not first
        np.testing.assert_array_equal(again.rows, first.rows)


def test_min_and_max_pixels_limit_the_embeddings(paths):
    with plait.Vision(paths["qwen2vl"], max_pixels=16 * 64) as vision:
        assert len(vision.encode(towers.image(90, 80))) <= 16
    with plait.Vision(paths["qwen2vl"], min_pixels=30 * 64) as vision:
        assert len(vision.encode(towers.image(20, 20))) >= 30
    with pytest.raises(ValueError, match=r"min_pixels, max_pixels.*got 900 and 500"):
        plait.Vision(paths["qwen2vl"], min_pixels=900, max_pixels=500)


def test_threads_share_an_encoder(vision):
    sizes = [(20 + 8 * i, 40) for i in range(4)]
    want = [vision.encode(towers.image(*size)).rows for size in sizes]
    with plait.Vision(vision._tower.path) as other:
        got = {}

        def encode(size):
            got[size] = other.encode(towers.image(*size)).rows

        threads = [threading.Thread(target=encode, args=[size]) for size in sizes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for size, rows in zip(sizes, want, strict=True):
        np.testing.assert_array_equal(got[size], rows)


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (np.zeros((4, 4), np.uint8), ValueError, r"expected the shape \(height, width, 3\), got \(4, 4\)"),
        (np.zeros((4, 4, 3), np.float32), ValueError, "expected uint8, 0 to 255, got float32"),
        (np.zeros((0, 4, 3), np.uint8), ValueError, "at least one pixel, got 4 x 0"),
        (np.zeros((1, 201, 3), np.uint8), ValueError, "may be at most 200 times"),
        (np.broadcast_to(np.uint8(0), (9000, 9000, 3)), ValueError, "9000 x 9000 pixels, expected at most"),
        (7, TypeError, "expected an array, a PIL image, a path or the bytes of a file, got int"),
        (b"no image", ValueError, "damaged or of an unknown format"),
        ("/nowhere/image.png", FileNotFoundError, "image.png"),
    ],
)  # fmt: skip
def test_other_images_are_refused(vision, image, error, message):
    with pytest.raises(error, match=message):
        vision.encode(image)


def png(width, height):
    data = io.BytesIO()
    pillow.new("1", (width, height)).save(data, "PNG")
    return data.getvalue()


def test_a_decompression_bomb_is_refused_before_it_is_decoded(vision, monkeypatch):
    monkeypatch.setattr(images, "_from_pillow", None)
    with pytest.raises(ValueError, match="9000 x 9000 pixels, expected at most 67108864 in all"):
        vision.encode(png(9000, 9000))


def test_a_truncated_image_is_refused(vision):
    data = io.BytesIO()
    pillow.fromarray(towers.image(64, 64)).save(data, "PNG")
    with pytest.raises(ValueError, match="the image is damaged"):
        vision.encode(data.getvalue()[: len(data.getvalue()) // 2])


def test_an_image_for_which_memory_runs_out_is_not_called_damaged(vision, monkeypatch):
    def fail(*args):
        raise MemoryError

    monkeypatch.setattr(images, "_from_pillow", fail)
    with pytest.raises(MemoryError):
        vision.encode(png(8, 8))


def test_a_large_file_is_refused(vision, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MAX_FILE_BYTES", 10)
    (tmp_path / "image.png").write_bytes(png(4, 4))
    with pytest.raises(ValueError, match="expected at most 10 bytes"):
        vision.encode(tmp_path / "image.png")


def test_images_need_pillow(vision, monkeypatch):
    data = png(4, 4)
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'plait\[vision\]'"):
        vision.encode(data)


def test_a_closed_encoder_raises(paths):
    vision = plait.Vision(paths["gemma3"])
    vision.close()
    vision.close()
    with pytest.raises(ValueError, match="closed"):
        vision.encode(towers.image(8, 8))


def test_an_encoder_is_not_a_model(paths):
    with pytest.raises(plait.UnsupportedError, match=r"image encoder.*open it with plait\.Vision"):
        plait.Model(paths["gemma3"])


def test_a_model_is_not_an_encoder(text_model):
    with pytest.raises(plait.ModelError, match=r"expected the architecture clip.*got qwen2vl"):
        plait.Vision(text_model.path)


CHANGES = {
    "an unknown projector": ({"clip.projector_type": "ldpv3"}, r'"ldpv3" is not supported; supported are gemma3'),
    "Gemma 3n": ({"clip.projector_type": "gemma3nv"}, '"gemma3nv" is not supported'),
    "no projector": ({"clip.projector_type": ""}, "is not supported"),
    "heads that do not divide": ({"clip.vision.attention.head_count": 5}, "5 does not divide the width 32"),
    "fewer layers": ({"clip.vision.block_count": 1}, "is 1, but the file has more layers"),
    "more layers": ({"clip.vision.block_count": 3}, r"v\.blk\.2\.ln1\.weight is missing"),
    "another patch": ({"clip.vision.patch_size": 5}, r"v\.patch_embd\.weight has shape"),
    "no patch": ({"clip.vision.patch_size": 0}, "patch_size: expected 1 to 256, got 0"),
    "a width of others": ({"clip.vision.embedding_length": 64}, "has shape"),
    "a key that changes the result": ({"clip.vision.unheard_of": 3}, r"clip\.vision\.unheard_of: not supported"),
    "a deviation of zero": ({"clip.vision.image_std": np.zeros(3, np.float32)}, "image_std: expected positive"),
    "two means": ({"clip.vision.image_mean": np.zeros(2, np.float32)}, "image_mean: expected three finite"),
    "a huge side": ({"clip.vision.image_size": 1 << 30}, "image_size: expected 1 to 16384"),
    "a text as a limit": ({"clip.vision.image_max_pixels": "x"}, "image_max_pixels: expected 1 to 67108864, got 'x'"),
    "limits in the wrong order": (
        {"clip.vision.image_min_pixels": 1 << 25}, r"damaged\.gguf: clip\.vision\.image_min_pixels, image_max_pixels: ",
    ),
    "a merge of zero": ({"clip.vision.spatial_merge_size": 0}, "spatial_merge_size: expected 1 to 16, got 0"),
    "both activations": ({"clip.use_gelu": True, "clip.use_silu": True}, "use_silu: expected false"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_damaged_metadata_is_refused(tmp_path, change):
    metadata, tensors = towers.qwen2vl()
    changes, message = CHANGES[change]
    path = gguf_writer.write(tmp_path / "damaged.gguf", metadata | changes, tensors)
    with pytest.raises((plait.ModelError, plait.UnsupportedError), match=message):
        plait.Vision(path)


@pytest.mark.parametrize("family", towers.FAMILIES)
def test_each_missing_tensor_is_noticed(tmp_path, family):
    metadata, tensors = towers.FAMILIES[family]()
    optional = ("bias", "img_break", "class_embd", "image_newline", "_min", "_max")
    for name in tensors:
        is_unused = family.startswith("llava") and name.startswith("v.post_ln")
        if any(part in name for part in optional) or is_unused:
            continue
        rest = {n: t for n, t in tensors.items() if n != name}
        path = gguf_writer.write(tmp_path / "damaged.gguf", metadata, rest)
        with pytest.raises((plait.ModelError, plait.UnsupportedError)):
            plait.Vision(path).encode(towers.image(12, 12))


@pytest.mark.parametrize("family", towers.FAMILIES)
def test_random_damage_never_ends_the_process(paths, tmp_path, family):
    data = paths[family].read_bytes()
    rng = np.random.default_rng(3)
    head = data.index(b"v.blk.1")
    for _ in range(60):
        damaged = bytearray(data)
        for at in rng.integers(0, head, rng.integers(1, 4)):
            damaged[at] = rng.integers(256)
        path = tmp_path / "damaged.gguf"
        path.write_bytes(
            damaged[: rng.integers(head, len(damaged))] if rng.random() < 0.3 else damaged
        )
        try:
            with plait.Vision(path) as vision:
                vision.encode(towers.image(12, 12))
        except (plait.Error, ValueError, MemoryError):
            pass


@needs_vulkan
@pytest.mark.parametrize("family", towers.FAMILIES)
def test_vulkan_computes_the_same(paths, family):
    size = towers.SIZES[1]
    with plait.Vision(paths[family]) as vision:
        want = vision.encode(towers.image(*size)).rows
    with plait.Vision(paths[family], backend="vulkan") as vision:
        got = vision.encode(towers.image(*size)).rows
    assert np.abs(got - want).max() <= 1e-3 * np.abs(want).max()


def rows_of(path, size=towers.SIZES[1]):
    with plait.Vision(path) as vision:
        return vision.encode(towers.image(*size)).rows


def test_exchanged_names_of_the_feed_forward_matrices_are_read(paths, tmp_path):
    metadata, tensors = towers.llava()
    exchanged = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}

    def name(old):
        return next((old.replace(a, b) for a, b in exchanged.items() if a in old), old)

    renamed = {name(old): tensor for old, tensor in tensors.items()}
    path = gguf_writer.write(tmp_path / "old.gguf", metadata, renamed)
    np.testing.assert_array_equal(rows_of(path), rows_of(paths["llava"]))


def test_an_audio_encoder_in_the_file_is_ignored(paths, tmp_path):
    metadata, tensors = towers.qwen2vl()
    metadata["clip.vision.projector_type"] = metadata.pop("clip.projector_type")
    metadata |= {"clip.has_audio_encoder": True, "clip.audio.block_count": 1}
    tensors["a.blk.0.ln1.weight"] = tensors["mm.a.fc.weight"] = np.ones((2, 3), np.float32)
    path = gguf_writer.write(tmp_path / "sound.gguf", metadata, tensors)
    np.testing.assert_array_equal(rows_of(path), rows_of(paths["qwen2vl"]))


def test_an_unknown_tensor_is_refused(tmp_path):
    metadata, tensors = towers.qwen2vl()
    tensors["v.blk.0.ls1.weight"] = np.ones(towers.WIDTH, np.float32)
    path = gguf_writer.write(tmp_path / "more.gguf", metadata, tensors)
    with pytest.raises(plait.ModelError, match=r"v\.blk\.0\.ls1\.weight does not belong"):
        plait.Vision(path)


SIZES = "clip.vision.image_grid_pinpoints"
TILES = {
    "no sizes": ({"clip.vision.mm_patch_merge_type": "spatial_unpad"}, "expected spatial_unpad with"),
    "flat": ({SIZES: np.array([24, 48], np.int32), "clip.vision.mm_patch_merge_type": "flat"}, "expected spatial"),
    "another projector": ({"clip.vision.mm_projector_type": "linear"}, "expected mlp2x_gelu"),
    "one layer": ({"clip.vision.feature_layer": np.array([1], np.int32)}, "feature_layer is not supported"),
    "half a size": ({SIZES: np.array([24, 48, 24], np.int32)}, "expected pairs of heights and widths"),
    "no integers": ({SIZES: np.array([24.0, 48.0], np.float32)}, "expected pairs of heights and widths"),
    "part of a tile": ({SIZES: np.array([24, 36], np.int32)}, "expected multiples of 24 .* got 24 x 36"),
    "no tile": ({SIZES: np.array([0, 24], np.int32)}, "expected multiples of 24 .* got 0 x 24"),
    "negative": ({SIZES: np.array([-24, -24], np.int32)}, "expected multiples of 24 .* got -24 x -24"),
    "a million tiles": ({SIZES: np.array([24000, 24000], np.int32)}, "at most 64 tiles"),
}  # fmt: skip


@pytest.mark.parametrize("case", TILES)
def test_tiles_of_llava_that_cannot_be_computed_are_refused(tmp_path, case):
    metadata, tensors = towers.llava()
    change, message = TILES[case]
    path = gguf_writer.write(tmp_path / "tiles.gguf", metadata | change, tensors)
    with pytest.raises((plait.ModelError, plait.UnsupportedError), match=message):
        plait.Vision(path)


LIMITS = {
    "reversed": ("min", 9.0, r"input_min: expected less than v\.blk\.0\.attn_q\.input_max"),
    "not a number": ("max", np.nan, "expected less than"),
    "one side": ("min", -np.inf, "limited on one side only"),
}


@pytest.mark.parametrize("case", LIMITS)
def test_limits_that_cannot_be_computed_are_refused(tmp_path, case):
    metadata, tensors = towers.gemma4()
    end, value, message = LIMITS[case]
    changed = {f"v.blk.0.attn_q.input_{end}": np.array([value], np.float32)}
    path = gguf_writer.write(tmp_path / "limits.gguf", metadata, tensors | changed)
    with pytest.raises((plait.ModelError, plait.UnsupportedError), match=message):
        plait.Vision(path)


def test_limits_without_end_change_nothing(paths, tmp_path):
    metadata, tensors = towers.gemma4()
    rest = {n: t for n, t in tensors.items() if not n.endswith(("_min", "_max"))}
    endless = rest | {n: np.array([-np.inf if n.endswith("_min") else np.inf], np.float32)
                      for n in tensors if n.endswith(("_min", "_max"))}  # fmt: skip
    without = rows_of(gguf_writer.write(tmp_path / "rest.gguf", metadata, rest))
    np.testing.assert_array_equal(
        rows_of(gguf_writer.write(tmp_path / "endless.gguf", metadata, endless)), without
    )
    assert np.abs(rows_of(paths["gemma4"]) - without).max() > 1e-3


def test_gemma_4_keeps_the_shape_of_images(paths):
    with plait.Vision(paths["gemma4"]) as vision:
        shapes = {
            size: vision.encode(towers.image(*size)).grid for size in ((40, 40), (20, 120), (9, 13))
        }
        assert shapes == {(40, 40): (8, 8), (20, 120): (3, 20), (9, 13): (6, 10)}
        assert vision.encode(towers.image(40, 40)).both_directions
    with plait.Vision(paths["gemma4"], max_pixels=144 * 16) as vision:
        assert vision.encode(towers.image(40, 40)).grid == (4, 4)
        assert vision.encode(towers.image(400, 4)).grid == (16, 1)
    with plait.Vision(paths["gemma4"], max_pixels=144 * 70 * 64) as vision, pytest.raises(
        ValueError, match="has positions for 64 per side; choose a smaller max_pixels"
    ):  # fmt: skip
        vision.encode(towers.image(40, 40))


def test_tiles_of_llava_depend_on_the_shape(paths):
    with plait.Vision(paths["llava16"]) as vision:
        wide, square = vision.encode(towers.image(20, 60)), vision.encode(towers.image(20, 20))
    assert wide.grid[1] > 2 * wide.grid[0]
    assert len(wide) == 36 + wide.grid[0] * (wide.grid[1] + 1)
    assert square.grid == (6, 12) or square.grid[0] == square.grid[1]


@pytest.mark.parametrize("n_rows", [(1 << 24) + 1, 1 << 31, (1 << 32) + 8])
def test_a_projector_wider_than_any_model_is_refused(tmp_path, n_rows):
    metadata, tensors = towers.llava()
    for name in ("mm.0.weight", "mm.0.bias"):
        tensors[name] = tensors[name][:1]
    del tensors["mm.2.bias"], tensors["mm.2.weight"]
    tensors["mm.2.weight"] = np.zeros((1, 1), np.float16)  # the last one, extended below
    path = gguf_writer.write(tmp_path / "wide.gguf", metadata, tensors)
    data = bytearray(path.read_bytes())
    at = data.index(b"mm.2.weight") + len("mm.2.weight") + 4
    data[at : at + 16] = struct.pack("<QQ", 1, n_rows)
    path.write_bytes(data)
    os.truncate(path, len(data) + 2 * n_rows)  # a file with a hole
    with pytest.raises(plait.ModelError, match=rf"tensor mm\.2\.weight has {n_rows} rows"):
        plait.Vision(path)
