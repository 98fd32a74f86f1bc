"""Peak memory of geometry-aware self-attention: a few rows at a time, at once, and without it.

    python benchmarks/geometry_memory.py [--images 50] [--regions 100] [--layers 4]

One forward and backward pass of the encoder at full size (D 512, 8 heads, geometry of width 64), on
random regions, each kind in a process of its own. `chunked` is how it is done, `whole` holds the
geometry of all pairs in every layer, `plain` has none.

Prints one line of JSON: megabytes above the memory before the pass, wall and CPU seconds, and the
ratio of `whole` to `chunked` of what comes on top of `plain`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

KINDS = ("plain", "chunked", "whole")
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--regions", type=int, default=100)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--kind", choices=KINDS, help="this one alone, in this process")
    options = parser.parse_args()
    if options.kind:
        print(json.dumps(measure(options.kind, options.images, options.regions, options.layers)))
        return
    sizes = [f"--{k}={getattr(options, k)}" for k in ("images", "regions", "layers")]
    # freed blocks go back to the system, so that the peak is of what is in use
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1048576"}
    found = {}
    for kind in KINDS:
        command = [sys.executable, __file__, *sizes, "--kind", kind]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        found[kind] = json.loads(done.stdout)
    extra = {kind: found[kind]["megabytes"] - found["plain"]["megabytes"] for kind in KINDS}
    ratio = round(extra["whole"] / extra["chunked"], 2)
    size = {"images": options.images, "regions": options.regions, "layers": options.layers}
    print(json.dumps({**size, **found, "ratio": ratio}))


def measure(kind: str, images: int, regions: int, layers: int) -> dict[str, float]:
    """Memory and time of one pass of the encoder."""
    sys.path.insert(0, str(ROOT))
    import torch

    from caption.features import Features
    from caption.models import normalized_geometry as ng
    from caption.transformer import Transformer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if kind == "whole":
        ng.CHUNK_BYTES = 1 << 60
    config = ng.NormalizedGeometryConfig(
        geometry=() if kind == "plain" else ("query",), encoder_layers=layers, decoder_layers=1
    )
    model = Transformer(config, in_width=2048, vocabulary=10, slots=ng.SLOTS)
    corners = torch.rand(images, regions, 2, 2).sort(dim=2).values * 500
    features = Features(
        rows={"regions": torch.randn(images, regions, 2048)},
        mask={"regions": torch.ones(images, regions, dtype=torch.bool)},
        boxes={"regions": corners.flatten(2)},
        sizes=torch.full((images, 2), 500.0),
        grid_shape={},
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    model.encode(features).levels[-1].sum().backward()
    return {
        "megabytes": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024),
        "wall_s": round(time.perf_counter() - wall, 1),
        "cpu_s": round(time.process_time() - cpu, 1),
    }


if __name__ == "__main__":
    main()
