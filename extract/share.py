"""One process's part of a job that several processes do together."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from extract.errors import ExtractError


@dataclass(frozen=True)
class Share:
    """The part of one of `world` processes; an image belongs to one, whatever else there is."""

    rank: int = 0
    world: int = 1

    def has(self, image_id: str) -> bool:
        """Whether this process does that image."""
        return zlib.crc32(image_id.encode("utf-8", "replace")) % self.world == self.rank

    def mends(self, rank: int) -> bool:
        """Whether this process tidies what an earlier process of that rank left behind."""
        return rank % self.world == self.rank

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Share:
        """What `torchrun` says in RANK and WORLD_SIZE; all of the job without them.

        Raises ExtractError when they are no such numbers or one of them is missing.
        """
        found = {key: environment.get(key, "") for key in ("RANK", "WORLD_SIZE")}
        if not any(found.values()):
            return cls()
        shown = ", ".join(f"{key}={value!r}" for key, value in found.items())
        try:
            share = cls(int(found["RANK"]), int(found["WORLD_SIZE"]))
        except ValueError:
            share = cls(0, 0)
        if not 0 <= share.rank < share.world:
            raise ExtractError(
                f"the environment says {shown}, wanted 0 <= RANK < WORLD_SIZE as torchrun sets"
                " them; unset both to extract with one process"
            )
        return share
