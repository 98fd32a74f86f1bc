"""Every kind of image file to upright RGB, or to an error with a reason."""

from __future__ import annotations

import csv
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from extract import images
from extract.errors import ImageError
from extract.images import ImageLimits, ImageRules, quiet_pillow, read_image

RULES, LIMITS = ImageRules(), ImageLimits()
# file of the awkward set -> reason, or (width, height, turned)
AWKWARD: dict[str, str | tuple[int, int, bool]] = {
    "Channel_digital_image_CMYK_color_no_profile.jpg": (500, 333, False),
    "Flag_of_the_Netherlands-16bit.png": (900, 600, False),
    "16-bit-grey-alpha.png": (109, 96, False),
    "Landscape_6.jpg": (1800, 1200, True),
    "hopper_orientation_6.webp": (128, 128, True),
    "xmp_tags_orientation.png": (326, 268, True),
    "truncated_libvips.jpg": "truncated",
    "truncated.png": "truncated",
    "broken_data_stream.png": "corrupt",
    "hopper_bad_exif.jpg": (500, 500, False),
    "hopper_gray.jpg": (128, 128, False),
    "bw_gradient.png": "absurd-shape",  # 25.6 to 1; its pixels below
    "tp1n3p08.png": (32, 32, False),
    "p_trns_single.png": (64, 64, False),
    "transparent.png": (200, 150, False),
    "full-transparent.png": "transparent",
    "rotating-squares.webp": (80, 80, False),
    "apng_mode_palette_alpha.png": (128, 64, False),
    "zero_width.gif": "too-small",
    "tRNS_null_1x1.png": "too-small",
    "2x2_fdcce6.png": "too-small",
    "big-height.webp": "absurd-shape",  # 13 to 1
    "zPug_3.heic": (64, 64, False),
    "empty.heic": "empty-file",
    "hopper.avif": (128, 128, False),
    "rot1mir0.avif": (640, 427, True),
    "avif-orientation-6.avif": (3024, 4032, False),
    "Ant_and_the_Dove_79.jpg": "not-an-image",
    "dptree.jpg": (364, 255, False),
    "sugarshack_bad_mpo_header.jpg": (640, 480, False),
    "hopper.heif": (128, 128, False),
    "cat.jpg": (320, 240, False),
    "举个例子图片.png": (376, 497, False),
    "Ankylosaurus_&_Stegosaurus_Thumbnail.jpg": (704, 480, False),
}


def saved(path: Path, pixels: np.ndarray, **options: object) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


def reason_of(path: Path, limits: ImageLimits = LIMITS) -> str:
    with pytest.raises(ImageError) as caught:
        read_image(path, RULES, limits)
    assert str(path) in str(caught.value) and caught.value.detail
    return caught.value.reason


@pytest.fixture
def photo() -> np.ndarray:
    """(24, 40, 3): red left, blue right, a white corner at the top left."""
    pixels = np.zeros((24, 40, 3), dtype=np.uint8)
    pixels[:, :20, 0], pixels[:, 20:, 2] = 200, 200
    pixels[:8, :8] = 255
    return pixels


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_file_has_its_outcome(shared_dir: Path, name: str) -> None:
    if name.endswith((".heic", ".heif")) and name != "empty.heic":
        pytest.importorskip("pillow_heif")
    path = shared_dir / "data" / "awkward" / "files" / name
    expected = AWKWARD[name]
    if isinstance(expected, str):
        assert reason_of(path) == expected
        return
    with quiet_pillow():
        image = read_image(path, RULES, LIMITS)
    assert (image.width, image.height, image.turned) == expected
    assert image.pixels.shape == (image.height, image.width, 3)
    assert image.pixels.dtype == np.uint8
    assert image.pixels.std() > 1  # a picture, no plain surface


def test_a_picture_of_odd_shape_can_be_let_in(shared_dir: Path) -> None:
    folder = shared_dir / "data" / "awkward" / "files"
    wide = ImageLimits(max_aspect=30)
    pixels = read_image(folder / "bw_gradient.png", RULES, wide).pixels
    assert pixels.shape == (10, 256, 3)
    assert (pixels == np.arange(256)[:, None]).all()
    assert (pixels[..., 0] == pixels[..., 2]).all()
    assert read_image(folder / "big-height.webp", RULES, wide).pixels.shape == (169, 13, 3)


def test_every_awkward_file_is_expected(shared_dir: Path) -> None:
    text = (shared_dir / "data" / "awkward" / "manifest.tsv").read_text(encoding="utf-8")
    rows = csv.DictReader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE)
    assert {row["file"] for row in rows} == set(AWKWARD)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
def test_orientation_tags_stand_the_picture_up(
    tmp_path: Path, photo: np.ndarray, orientation: int, suffix: str
) -> None:
    back = {1: lambda x: x, 2: np.fliplr, 3: lambda x: np.rot90(x, 2), 4: np.flipud}
    back |= {5: lambda x: x.transpose(1, 0, 2), 6: np.rot90}
    back |= {7: lambda x: np.rot90(x, 2).transpose(1, 0, 2), 8: lambda x: np.rot90(x, -1)}
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.ascontiguousarray(back[orientation](photo))
    options = {"quality": 95} if suffix != ".png" else {}
    path = saved(tmp_path / f"a{suffix}", stored, exif=exif, **options)
    image = read_image(path, RULES, LIMITS)
    assert (image.width, image.height, image.turned) == (40, 24, orientation != 1)
    assert np.abs(image.pixels[4::4, 4::4].astype(int) - photo[4::4, 4::4]).mean() < 12
    untouched = read_image(path, ImageRules(exif_turn=False), LIMITS)
    assert (untouched.height, untouched.width) == stored.shape[:2]


def test_alpha_is_laid_on_the_background(tmp_path: Path) -> None:
    pixels = np.zeros((10, 10, 4), dtype=np.uint8)
    pixels[:5] = (255, 0, 0, 255)
    pixels[5:] = (0, 0, 0, 127)
    path = saved(tmp_path / "a.png", pixels)
    assert read_image(path, RULES, LIMITS).pixels[[0, 9], 0].tolist() == [
        [255, 0, 0],
        [128, 128, 128],
    ]
    green = read_image(path, ImageRules(background=(0, 255, 0)), LIMITS)
    assert green.pixels[9, 0].tolist() == [0, 128, 0]


def test_palette_and_grey_with_transparency(tmp_path: Path) -> None:
    palette = Image.new("P", (10, 10), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.paste(0, (0, 0, 10, 5))
    palette.save(tmp_path / "p.png", transparency=0)
    pixels = read_image(tmp_path / "p.png", RULES, LIMITS).pixels
    assert pixels[[0, 9], 0].tolist() == [[255, 255, 255], [10, 20, 30]]
    grey = np.full((10, 10), 77, dtype=np.uint8)
    grey[:5] = 3
    path = saved(tmp_path / "l.png", grey, transparency=3)
    assert read_image(path, RULES, LIMITS).pixels[[0, 9], 0, 0].tolist() == [255, 77]


def test_sixteen_bit_greys_are_scaled(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    for name in ("a.png", "a.tif"):
        image = read_image(saved(tmp_path / name, values), RULES, LIMITS)
        assert np.abs(image.pixels[..., 0] - values / 257.0).max() <= 0.5
        assert (image.pixels[..., 0] == image.pixels[..., 2]).all()


def test_sixteen_bit_colours_are_scaled(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 8 * 8 * 3).reshape(8, 8, 3).astype(">u2")

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    rows = b"".join(b"\0" + row.tobytes() for row in values)
    head = struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)
    path = tmp_path / "a.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    assert np.abs(read_image(path, RULES, LIMITS).pixels - values / 257.0).max() <= 1


def test_pixels_that_eight_bits_cannot_tell_are_refused(tmp_path: Path) -> None:
    large = np.arange(100, dtype=np.int32).reshape(10, 10) * 100_000
    assert reason_of(saved(tmp_path / "i.tif", large)) == "unknown-mode"
    assert reason_of(saved(tmp_path / "f.tif", large.astype(np.float32))) == "unknown-mode"


def test_cmyk_colours(tmp_path: Path) -> None:
    Image.new("CMYK", (10, 10), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=95)
    image = read_image(tmp_path / "a.jpg", RULES, LIMITS)
    red, green, blue = image.pixels[5, 5].tolist()
    assert image.mode == "CMYK" and red > 245 and green < 10 and blue < 10


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".png", ".tif"])
def test_first_frame_of_many(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (10, 10), colour) for colour in ("red", "lime", "blue")]
    path = tmp_path / f"a{suffix}"
    options = {"lossless": True} if suffix == ".webp" else {}
    frames[0].save(path, save_all=True, append_images=frames[1:], **options)
    assert read_image(path, RULES, LIMITS).pixels[5, 5].tolist() == [255, 0, 0]


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".gif", ".webp", ".avif", ".tif"])
def test_a_file_cut_anywhere_is_whole_or_refused(
    tmp_path: Path, photo: np.ndarray, suffix: str
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    data = saved(tmp_path / f"whole{suffix}", noise).read_bytes()
    whole = read_image(tmp_path / f"whole{suffix}", RULES, LIMITS).pixels
    path = tmp_path / f"cut{suffix}"
    refused = 0
    for length in range(0, len(data), max(len(data) // 40, 1)):
        path.write_bytes(data[:length])
        try:
            with quiet_pillow():
                image = read_image(path, RULES, LIMITS)
        except ImageError:
            refused += 1
        else:
            assert (image.pixels == whole).all(), f"{length} of {len(data)} bytes"
    assert refused >= 38


def test_limits(tmp_path: Path) -> None:
    def plain(width: int, height: int) -> Path:
        return saved(tmp_path / f"{width}x{height}.png", np.zeros((height, width), np.uint8))

    limited = ImageLimits(max_pixels=10_000)
    assert reason_of(plain(7, 100)) == "too-small"
    assert reason_of(plain(121, 10)) == "absurd-shape"
    assert reason_of(plain(101, 100), limited) == "too-large"
    assert read_image(plain(120, 10), RULES, LIMITS).width == 120
    assert read_image(plain(100, 100), RULES, limited).width == 100


def test_decompression_bombs_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    for side, name in ((9_000, "warned.png"), (14_000, "refused.png"), (60_000, "huge.png")):
        head = struct.pack(">IIBBBBB", side * 2, side, 8, 2, 0, 0, 0)
        chunk = b"IHDR" + head
        path = tmp_path / name
        data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk
        path.write_bytes(data + struct.pack(">I", zlib.crc32(chunk)) + b"\0\0\0\0IDAT" + b"\0" * 4)
        with quiet_pillow():
            assert reason_of(path) == "too-large"


def test_files_that_are_no_images(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    for content, reason in (
        (b"", "empty-file"),
        (b"\n <!DOCTYPE html><html>", "not-an-image"),
        (b"hello", "not-an-image"),
        (b"GIF8", "corrupt"),
        (b"\xff\xd8\xff\xe0 and then nothing", "corrupt"),
    ):
        path.write_bytes(content)
        assert reason_of(path) == reason, content
    assert reason_of(tmp_path / "absent.jpg") == "missing"
    assert reason_of(tmp_path) == "unreadable"


def test_heic_without_its_plugin_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_heic_plugin", lambda: False)
    path = tmp_path / "a.jpg"  # by content, not by name
    path.write_bytes(struct.pack(">I", 24) + b"ftypheic\0\0\0\0mif1heic" + b"\0" * 40)
    with pytest.raises(ImageError, match="pip install pillow-heif") as caught:
        read_image(path, RULES, LIMITS)
    assert caught.value.reason == "needs-heic"
