"""A program to be killed: commits image after image and says so once each is durable.

python -m tests.extract.commit_forever FOLDER
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from extract.writer import CacheWriter
from tests.extract.cache_records import META, STREAMS, record

if __name__ == "__main__":
    with CacheWriter(Path(sys.argv[1]), META, STREAMS) as writer:
        print("open", flush=True)
        ids = (f"i{k}" for k in itertools.count() if f"i{k}" not in writer.done)
        for first in ids:
            batch = [first, next(ids)]
            writer.commit([record(image) for image in batch])
            print(*batch, flush=True)
