"""One image file to upright 8-bit RGB pixels, or an error that says which file and why."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from extract.errors import ExtractError, ImageError

_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")
_TURNS = {  # EXIF orientation -> what stands the picture up
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_FORMATS = {  # how files of some formats begin
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF8": "GIF",
    b"RIFF": "WebP",
    b"BM": "BMP",
    b"II*\x00": "TIFF",
    b"MM\x00*": "TIFF",
}
_ALPHA_MODES = ("RGBA", "LA", "PA", "La", "RGBa")
# what Pillow may open; not PostScript and the like, which start other programs
_OPENED = ("JPEG", "PNG", "GIF", "WEBP", "AVIF", "BMP", "TIFF", "PPM", "JPEG2000", "ICO")
_MOST_PIXELS = 2 * 89_478_485  # Pillow opens nothing larger


@dataclass(frozen=True, kw_only=True)
class ImageRules:
    """How an image becomes plain RGB; colour profiles are not applied."""

    background: tuple[int, int, int] = (255, 255, 255)  # under transparent pixels
    exif_turn: bool = True  # stand the picture up as its orientation tag says


@dataclass(frozen=True, kw_only=True)
class ImageLimits:
    """Which images are taken; they do not alter the features of those that are."""

    min_side: int = 8  # pixels
    max_pixels: int = 100_000_000
    max_aspect: float = 12.0  # longer side over shorter side

    def __post_init__(self) -> None:
        if not 1 <= self.max_pixels <= _MOST_PIXELS:
            raise ExtractError(
                f"limits.max_pixels is {self.max_pixels}, wanted 1 to {_MOST_PIXELS}"
            )
        if self.min_side < 1 or self.max_aspect < 1:
            raise ExtractError(
                f"limits.min_side is {self.min_side} and limits.max_aspect {self.max_aspect},"
                " wanted 1 or more"
            )


@dataclass(frozen=True, kw_only=True)
class UprightImage:
    """Pixels (height, width, 3) uint8 RGB, upright, and facts about the file."""

    pixels: np.ndarray
    width: int
    height: int
    mode: str  # Pillow's name of the file's own mode
    turned: bool  # whether an orientation tag was applied


def read_image(path: Path, rules: ImageRules, limits: ImageLimits) -> UprightImage:
    """Read an image file. Raises ImageError with one of these reasons:

    missing, unreadable, empty-file, not-an-image, needs-heic, truncated, corrupt, too-small,
    too-large, absurd-shape, transparent, unknown-mode.

    Of an animation it is the first frame. Pillow may warn of odd files; see `quiet_pillow`.
    """
    head = _head(path)
    try:
        with Image.open(path, formats=_formats()) as image:
            _check_size(path, image.size, limits)
            mode = image.mode
            image.load()
            turned = _upright(image) if rules.exif_turn else image
            rgb = _rgb(path, turned, rules)
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(path, "too-large", str(error)) from error
    except UnidentifiedImageError as error:
        raise _unidentified(path, head) from error
    except MemoryError as error:
        raise ImageError(path, "too-large", "not enough memory to decode it") from error
    except OSError as error:
        reason = "truncated" if "truncated" in str(error) else "corrupt"
        raise ImageError(path, reason, str(error)) from error
    except Exception as error:  # decoders raise many kinds on broken files
        raise ImageError(path, "corrupt", f"{type(error).__name__}: {error}") from error
    pixels = np.asarray(rgb)  # (height, width, 3)
    return UprightImage(
        pixels=pixels,
        width=pixels.shape[1],
        height=pixels.shape[0],
        mode=mode,
        turned=turned is not image,
    )


def upright_size(path: Path) -> tuple[int, int]:
    """Width and height of an image once it is turned, from its header. Raises ImageError."""
    head = _head(path)
    try:
        with Image.open(path, formats=_formats()) as image:
            width, height = image.size
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
    except UnidentifiedImageError as error:
        raise _unidentified(path, head) from error
    except Exception as error:  # decoders raise many kinds on broken files
        raise ImageError(path, "corrupt", f"{type(error).__name__}: {error}") from error
    return (height, width) if turned else (width, height)


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Without Pillow's warnings: of large images, where `ImageLimits` decide, and broken tags.

    Filters of warnings belong to the whole process, so this goes around threads, not into them.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def _head(path: Path) -> bytes:
    """The first bytes of a file that can be read and is not empty; HEIC needs its plugin."""
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        reason = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
        raise ImageError(path, reason, error.strerror or str(error)) from error
    if not head:
        raise ImageError(path, "empty-file", "the file has no bytes")
    heic = head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS and b"avif" not in head[8:64]
    if heic and not _heic_plugin():
        detail = "a HEIC image; type pip install pillow-heif"
        raise ImageError(path, "needs-heic", detail)
    return head


def _check_size(path: Path, size: tuple[int, int], limits: ImageLimits) -> None:
    width, height = size
    if width * height > limits.max_pixels:
        wanted = f"wanted at most {limits.max_pixels:,} pixels (setting limits.max_pixels)"
        raise ImageError(path, "too-large", f"{width} x {height}, {wanted}")
    if min(size) < limits.min_side:
        wanted = f"wanted sides of {limits.min_side} pixels or more (setting limits.min_side)"
        raise ImageError(path, "too-small", f"{width} x {height}, {wanted}")
    if max(size) > limits.max_aspect * min(size):
        wanted = f"wanted at most {limits.max_aspect:g} to 1 (setting limits.max_aspect)"
        raise ImageError(path, "absurd-shape", f"{width} x {height}, {wanted}")


def _upright(image: Image.Image) -> Image.Image:
    """The image turned by its orientation tag, or the very same one; a broken tag turns nothing."""
    try:
        orientation = image.getexif().get(0x0112, 1)
    except Exception:  # Pillow raises many kinds on broken EXIF blocks; the pixels are fine
        return image
    return image.transpose(_TURNS[orientation]) if orientation in _TURNS else image


def _rgb(path: Path, image: Image.Image, rules: ImageRules) -> Image.Image:
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image).astype(np.float64)  # (height, width) 16-bit greys
        if values.min() < 0 or values.max() > 65535:
            raise ImageError(path, "unknown-mode", "32-bit greys, wanted 8- or 16-bit pixels")
        scaled = np.rint(values / 257.0).astype(np.uint8)
        return Image.fromarray(scaled).convert("RGB")
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        rgba = image.convert("RGBA")
        if rgba.getchannel("A").getextrema()[1] == 0:
            raise ImageError(path, "transparent", "every pixel is fully transparent")
        ground = Image.new("RGBA", rgba.size, (*rules.background, 255))
        return Image.alpha_composite(ground, rgba).convert("RGB")
    if image.mode == "F":
        raise ImageError(path, "unknown-mode", f"mode {image.mode}, wanted 8- or 16-bit pixels")
    return image.convert("RGB")


def _unidentified(path: Path, head: bytes) -> ImageError:
    """Why Pillow knows no format for a file that begins so."""
    if head.startswith(b"GIF8") and len(head) >= 10:
        width, height = struct.unpack("<HH", head[6:10])
        if 0 in (width, height):
            return ImageError(path, "too-small", f"a GIF of {width} x {height} pixels")
    for beginning, name in _FORMATS.items():
        if head.startswith(beginning):
            return ImageError(path, "corrupt", f"begins as {name} but cannot be decoded")
    start = head.lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return ImageError(path, "not-an-image", "a web page saved under an image's name")
    return ImageError(path, "not-an-image", f"no known image format, begins {head[:8]!r}")


def _formats() -> tuple[str, ...]:
    return (*_OPENED, "HEIF") if _heic_plugin() else _OPENED


@cache
def _heic_plugin() -> bool:
    """Whether HEIC can be read; registers the plugin where it is installed."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True
