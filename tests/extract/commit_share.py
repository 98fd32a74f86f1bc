"""A program to be killed: commits its share of i0 ... i15, two images at a time, and tells.

RANK=0 WORLD_SIZE=2 python -m tests.extract.commit_share FOLDER [SECONDS BETWEEN COMMITS]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from extract.share import Share
from extract.writer import CacheWriter
from tests.extract.cache_records import META, STREAMS, record

IDS = [f"i{k}" for k in range(16)]

if __name__ == "__main__":
    share = Share.of_environment()
    with CacheWriter(Path(sys.argv[1]), META, STREAMS, share) as writer:
        print("open", flush=True)
        ids = [image for image in IDS if share.has(image) and image not in writer.done]
        for batch in (ids[k : k + 2] for k in range(0, len(ids), 2)):
            writer.commit([record(image) for image in batch])
            print(*batch, flush=True)
            time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
