"""Widths and heights of images for feature files that do not tell them."""

from __future__ import annotations

import json
from pathlib import Path

from extract.cache import image_id_of
from extract.errors import CacheError, ImageError
from extract.images import upright_size
from extract.sources import find_sources


class ImageSizes:
    """Sizes of upright images by id, out of COCO's JSON or the images themselves."""

    def __init__(self, path: Path) -> None:
        """`path`: a JSON with `images` that have `id` (or `file_name`), `width` and `height`, or
        a folder of images. Raises CacheError."""
        self.path = path
        self._files: dict[str, Path] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        if path.is_dir():
            self._files = {source.image_id: source.path for source in find_sources([path])}
        else:
            self._sizes = _of_json(path)

    def of(self, image_id: str) -> tuple[int, int] | None:
        """Width and height in pixels; None where nothing is known."""
        if image_id in self._files:
            try:
                return upright_size(self._files[image_id])
            except ImageError:
                return None
        return self._sizes.get(image_id)


def _of_json(path: Path) -> dict[str, tuple[int, int]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise CacheError(f"{path}: cannot be read as JSON ({error})") from error
    images = content.get("images") if isinstance(content, dict) else None
    try:
        sizes = {
            str(i["id"]) if "id" in i else image_id_of(str(i["file_name"])): (
                int(i["width"]),
                int(i["height"]),
            )
            for i in images or []
        }
    except (KeyError, TypeError, ValueError) as error:
        raise CacheError(
            f"{path}: an entry of images lacks {error}, wanted id, width and height"
        ) from error
    if not sizes:
        raise CacheError(f"{path}: no images in it, wanted images with id, width and height")
    return sizes
