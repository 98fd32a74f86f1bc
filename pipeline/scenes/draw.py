"""A scene as a picture: smooth shapes with soft shadows on a quiet background."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from pipeline.scenes.outlines import RING_HOLE, outline
from pipeline.scenes.scene import Scene, Thing

PALETTE: dict[str, tuple[int, int, int]] = {
    "blue": (47, 111, 196),
    "red": (209, 58, 62),
    "yellow": (244, 202, 62),
    "green": (62, 152, 88),
    "purple": (132, 78, 178),
    "orange": (238, 132, 44),
    "white": (250, 249, 245),
    "black": (44, 47, 56),
}
_BACKDROPS: dict[str, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    "sand": ((226, 212, 190), (203, 186, 163)),
    "mist": ((201, 215, 222), (172, 190, 200)),
    "sage": ((206, 217, 200), (178, 194, 173)),
    "blush": ((230, 210, 203), (208, 182, 176)),
    "lilac": ((212, 207, 226), (186, 180, 205)),
    "stone": ((213, 211, 206), (186, 184, 180)),
}
_SMOOTH = 4  # masks are drawn so many times larger and averaged down
_STRIPE, _DOT = 0.3, 0.44  # periods of the textures, in half sizes of the object
_SHADOW = 0.3  # darkness of a shadow


def draw(scene: Scene, rng: np.random.Generator, side: int) -> Image.Image:
    """The scene as an RGB picture of `side` x `side` pixels.

    `rng` draws what means nothing: the grain and the direction of the background.
    """
    canvas = _backdrop(scene.backdrop, rng, side)  # (side, side, 3) float32, 0 to 255
    for thing in scene.things:
        _paint(canvas, thing, side)
    canvas *= np.array(scene.light, dtype=np.float32)
    canvas += 1.2 * rng.standard_normal((side, side, 1), dtype=np.float32) + np.float32(0.5)
    return Image.fromarray(np.clip(canvas, 0, 255, out=canvas).astype(np.uint8))


def mask(thing: Thing, side: int) -> tuple[np.ndarray, tuple[int, int]]:
    """How much of each pixel an object fills, (h, w) float32 from 0 to 1, and its corner (x, y)."""
    x1, y1, x2, y2 = thing.box(side)
    left, top = math.floor(x1) - 1, math.floor(y1) - 1
    width, height = math.ceil(x2) + 1 - left, math.ceil(y2) + 1 - top
    large = Image.new("L", (width * _SMOOTH, height * _SMOOTH))
    pen = ImageDraw.Draw(large)
    radius = thing.size / 2 * side
    middle = np.array([thing.x * side - left, thing.y * side - top])
    # a pixel's number is its middle, so edges lie half a pixel lower
    points = (middle + radius * outline(thing.shape, thing.tilt)) * _SMOOTH - 0.5  # (K, 2)
    pen.polygon([(x, y) for x, y in points.tolist()], fill=255)
    if thing.shape == "ring":
        x, y = (middle * _SMOOTH - 0.5).tolist()
        hole = radius * RING_HOLE * _SMOOTH
        pen.ellipse((x - hole, y - hole, x + hole, y + hole), fill=0)
    filled = np.asarray(large.reduce(_SMOOTH), dtype=np.float32) / 255  # (h, w)
    return filled, (left, top)


def _backdrop(name: str, rng: np.random.Generator, side: int) -> np.ndarray:
    """A slanting gradient with faint clouds, (side, side, 3)."""
    bright, dim = (np.array(colour, dtype=np.float32) for colour in _BACKDROPS[name])
    steps = np.linspace(-0.5, 0.5, side, dtype=np.float32)
    angle = rng.uniform(0.15, 0.85) * math.pi
    slope = 0.5 + math.cos(angle) * steps[None, :] + math.sin(angle) * steps[:, None]
    coarse = Image.fromarray(rng.normal(size=(6, 6)).astype(np.float32))
    clouds = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC))  # (side, side)
    share = np.clip(slope + 0.12 * clouds, 0, 1)[:, :, None]
    return bright + share * (dim - bright)  # (side, side, 3)


def _paint(canvas: np.ndarray, thing: Thing, side: int) -> None:
    filled, (left, top) = mask(thing, side)
    _shade(canvas, filled, left, top, thing.size * side)
    height, width = filled.shape
    x = (np.arange(width) + 0.5 + left - thing.x * side) / (thing.size * side / 2)  # (w,)
    y = (np.arange(height) + 0.5 + top - thing.y * side) / (thing.size * side / 2)  # (h,)
    base = np.array(PALETTE[thing.colour], dtype=np.float32)
    inner = Image.fromarray((255 * filled).astype(np.uint8)).filter(ImageFilter.MinFilter(3))
    share = _texture(thing, x, y, side) * (np.asarray(inner, dtype=np.float32) / 255)  # (h, w)
    colour = base + share[:, :, None] * (_second(base) - base)  # (h, w, 3)
    light = np.clip(-0.6 * y[:, None] - 0.4 * x[None, :], -1, 1)[:, :, None]  # from the upper left
    colour = colour * (1 + 0.07 * light)
    _blend(canvas, filled, left, top, colour)


def _second(base: np.ndarray) -> np.ndarray:
    """The second colour of a texture: lighter, or darker for light colours."""
    if base @ (0.299, 0.587, 0.114) > 170:
        return base * np.array((0.72, 0.68, 0.66), dtype=np.float32)
    return base + 0.62 * (255 - base)


def _texture(thing: Thing, x: np.ndarray, y: np.ndarray, side: int) -> np.ndarray:
    """How far the second colour shows, (h, w) from 0 to 1; x and y count in half sizes."""
    if thing.texture == "plain":
        return np.zeros((len(y), len(x)), dtype=np.float32)
    angle = math.radians(45 - thing.tilt)
    u = math.cos(angle) * x[None, :] + math.sin(angle) * y[:, None]  # (h, w)
    v = math.cos(angle) * y[:, None] - math.sin(angle) * x[None, :]  # (h, w)
    half = thing.size * side / 2
    if thing.texture == "striped":
        period = max(_STRIPE, 4 / half)
        away = np.abs((u / period) % 1 - 0.5) * period  # from the middle of a stripe
        return np.clip((period / 4 - away) * half + 0.5, 0, 1).astype(np.float32)
    period = max(_DOT, 5 / half)
    across = ((u / period) % 1 - 0.5) * period
    along = ((v / period) % 1 - 0.5) * period
    away = np.hypot(across, along)
    return np.clip((0.29 * period - away) * half + 0.5, 0, 1).astype(np.float32)


def _shade(canvas: np.ndarray, filled: np.ndarray, left: int, top: int, width: float) -> None:
    """Darken what lies under the object, a little to the lower right."""
    blur = 0.8 + 0.03 * width
    step = round(0.8 + 0.03 * width)
    pad = math.ceil(2 * blur)
    padded = np.pad(filled, pad)
    soft = Image.fromarray((255 * padded).astype(np.uint8)).filter(ImageFilter.GaussianBlur(blur))
    alpha = np.asarray(soft, dtype=np.float32) * (_SHADOW / 255)
    _blend(canvas, alpha, left - pad + step, top - pad + step, np.float32(25))


def _blend(
    canvas: np.ndarray, alpha: np.ndarray, left: int, top: int, colour: np.ndarray | np.float32
) -> None:
    """Lay a colour over the canvas where `alpha` (h, w) says so; what lies outside is cut off."""
    side = len(canvas)
    height, width = alpha.shape
    x1, y1, x2, y2 = max(left, 0), max(top, 0), min(left + width, side), min(top + height, side)
    rows, columns = slice(y1 - top, y2 - top), slice(x1 - left, x2 - left)
    inner = colour if np.ndim(colour) == 0 else np.asarray(colour)[rows, columns]
    part = canvas[y1:y2, x1:x2]
    part += alpha[rows, columns, None] * (inner - part)
