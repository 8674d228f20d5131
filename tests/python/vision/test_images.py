"""Images of unusual kinds become the right pixels or an error."""

import io

import numpy as np
import pytest
from plait.vision.images import to_rgb
from python.vision import towers

pillow = pytest.importorskip("PIL.Image", reason="images need Pillow")

PIXELS = towers.image(40, 56)
RED = (255, 0, 0)


def file_of(picture, kind="PNG", **options):
    data = io.BytesIO()
    picture.save(data, kind, **options)
    return data.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_files_without_loss_keep_their_pixels(kind):
    np.testing.assert_array_equal(to_rgb(file_of(pillow.fromarray(PIXELS), kind)), PIXELS)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_files_with_loss_keep_their_pixels_nearly(kind):
    got = to_rgb(file_of(pillow.fromarray(PIXELS), kind, quality=95)).astype(int)
    assert np.abs(got - PIXELS).mean() < 12


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_palettes(kind):
    picture = pillow.fromarray(PIXELS).quantize(32)
    want = np.array(picture.convert("RGB"))
    np.testing.assert_array_equal(to_rgb(file_of(picture, kind)), want)


def test_transparent_colours_of_palettes_are_white():
    picture = pillow.fromarray(PIXELS).quantize(32)
    index = np.array(picture)
    got = to_rgb(file_of(picture, transparency=3))
    np.testing.assert_array_equal(got[index == 3], 255)
    want = np.array(picture.convert("RGB"))
    np.testing.assert_array_equal(got[index != 3], want[index != 3])


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bits_of_grey(kind):
    grey = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16
    got = to_rgb(file_of(pillow.fromarray(grey), kind))
    np.testing.assert_array_equal(got, np.repeat((grey >> 8)[:, :, None], 3, axis=2))
    np.testing.assert_array_equal(to_rgb(pillow.fromarray(grey)), got)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGBA", "P", "HSV", "YCbCr"])
def test_other_modes_are_converted(mode):
    picture = pillow.new("RGB", (8, 6), (90, 90, 90)).convert(mode)
    want = np.array(picture.convert("RGB"))
    got = to_rgb(picture)
    assert got.shape == (6, 8, 3)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_inks(kind):
    inks = np.full((16, 16, 4), (0, 255, 255, 0), np.uint8)
    got = to_rgb(file_of(pillow.fromarray(inks, "CMYK"), kind))
    assert np.abs(got.astype(int) - RED).max() <= 3


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_of_an_animation_is_used(kind):
    frames = [pillow.new("RGB", (16, 16), colour) for colour in (RED, (0, 255, 0), (0, 0, 255))]
    data = file_of(frames[0], kind, save_all=True, append_images=frames[1:])
    assert np.abs(to_rgb(data).astype(int) - RED).max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations(orientation):
    picture = pillow.fromarray(PIXELS)
    exif = picture.getexif()
    exif[0x0112] = orientation
    turned = {
        1: PIXELS, 2: PIXELS[:, ::-1], 3: PIXELS[::-1, ::-1], 4: PIXELS[::-1], 5: PIXELS.transpose(1, 0, 2),
        6: np.rot90(PIXELS, -1), 7: PIXELS[::-1, ::-1].transpose(1, 0, 2), 8: np.rot90(PIXELS),
    }  # fmt: skip
    data = file_of(picture, exif=exif)
    np.testing.assert_array_equal(to_rgb(data), turned[orientation])
    np.testing.assert_array_equal(to_rgb(pillow.open(io.BytesIO(data))), turned[orientation])


def test_premultiplied_transparency_is_white():
    rows = np.random.default_rng(5).integers(0, 256, (6, 8, 4), dtype=np.uint8)
    picture = pillow.fromarray(rows, "RGBA").convert("RGBa")
    np.testing.assert_array_equal(to_rgb(picture), to_rgb(picture.convert("RGBA")))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_an_opened_file_that_is_truncated_is_refused(dtype):
    rows = np.random.default_rng(6).integers(0, 255, (64, 64), dtype=dtype)
    data = file_of(pillow.fromarray(rows))
    with pytest.raises(ValueError, match="cannot be read"):
        to_rgb(pillow.open(io.BytesIO(data[: len(data) // 2])))


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (lambda: pillow.new("F", (8, 8)), "has the mode F, whose values have no certain colours"),
        (lambda: pillow.new("LAB", (8, 8)), "has the mode LAB"),
        (lambda: pillow.fromarray(np.full((8, 8), 1 << 20, np.int32)), "more than 16 bits"),
        (lambda: pillow.fromarray(np.full((8, 8), -1, np.int32)), "more than 16 bits"),
        (lambda: pillow.new("RGB", (0, 8)), "at least one pixel"),
        (lambda: np.zeros((0, 8, 3), np.uint8), "at least one pixel"),
        (lambda: pillow.new("1", (201, 1)), "at most 200 times"),
        (lambda: b"", "unknown format"),
        (lambda: b"GIF89a", "unknown format"),
        (lambda: b"%PDF-1.7", "unknown format"),
    ],
)
def test_images_without_certain_pixels_are_refused(picture, message):
    with pytest.raises(ValueError, match=message):
        to_rgb(picture())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_damaged_files_are_errors_or_pixels(kind):
    rng = np.random.default_rng(7)
    whole = file_of(pillow.fromarray(PIXELS), kind)
    n_errors = 0
    for _ in range(150):
        data = bytearray(whole[: rng.integers(1, len(whole))] if rng.random() < 0.4 else whole)
        for at in rng.integers(0, min(len(data), 400), rng.integers(1, 6)):
            data[at] = rng.integers(256)
        try:
            pixels = to_rgb(bytes(data), 1 << 20)
        except (ValueError, MemoryError):
            n_errors += 1
            continue
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
        assert pixels.size <= 3 << 20
    assert n_errors > 20
