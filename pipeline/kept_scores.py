"""`RUN/scores/NAME.json`: written, and of the same captions added to."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from evaluate.scores import METRICS
from pipeline.files import write_text
from pipeline.scoring import Scored

log = logging.getLogger(__name__)

_COMMON = ("images", "refs", "tok", "version")  # parts of the signature that are of all metrics


def write_scores(path: Path, scored: Scored) -> None:
    """Keep everything of one source as JSON: `Scores.from_json` reads it.

    Metrics that the file has of the same captions, references and signature stay in it.
    """
    fresh = {**json.loads(scored.scores.to_json()), **scored.to_dict(), "basis": scored.basis}
    kept = _read(path)
    same = kept is not None and _same(kept, fresh)
    found = merged(kept, fresh) if kept is not None and same else fresh
    if kept is not None and not same:
        _tell_replaced(path, kept.get("decoding") or {}, fresh["decoding"] or {})
    write_text(path, json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")


def _tell_replaced(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Warn where scores of the same name are gone that were of another way of decoding."""
    other = [f"{key} {value}" for key, value in old.items() if new.get(key) != value]
    if other:
        log.warning("%s: replaces the scores with %s", path, ", ".join(other))


def merged(kept: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """The fresh scores, with what only the kept ones of the same captions have."""
    found = dict(fresh)
    for key in ("corpus", "per_image", "details", "counts", "intervals"):
        found[key] = {**kept[key], **fresh[key]}
    missing = {**kept["unavailable"], **fresh["unavailable"]}
    found["unavailable"] = {c: why for c, why in missing.items() if c not in found["corpus"]}
    counted = {key: value for key, value in fresh["diversity"].items() if value is not None}
    found["diversity"] = {**kept["diversity"], **counted}
    old, new = _parts(kept["signature"]), _parts(fresh["signature"])
    if "cider" not in new:  # all other warnings are about the captions and found again
        more = [line for line in kept["warnings"] if line not in fresh["warnings"]]
        found["warnings"] = [*fresh["warnings"], *more]
    if kept["basis"]["domains"] == fresh["basis"]["domains"]:
        found["domains"] = {
            name: {**kept["domains"][name], **values} for name, values in fresh["domains"].items()
        }
    elif not fresh["domains"] and new.get("cider") in (None, old.get("cider")):
        found["domains"] = kept["domains"]
        found["basis"] = {**fresh["basis"], "domains": kept["basis"]["domains"]}
    parts = {**old, **{key: part for key, part in new.items() if part != "n/a" or key not in old}}
    order = (*_COMMON[:-1], *METRICS, _COMMON[-1])
    found["signature"] = "|".join(f"{key}:{parts[key]}" for key in order if key in parts)
    return found


def _read(path: Path) -> dict[str, Any] | None:
    """The scores kept, None where there are none to add to."""
    try:
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) and "basis" in kept else None


def _same(kept: dict[str, Any], fresh: dict[str, Any]) -> bool:
    """Whether both are of the same captions and references, scored in the same way."""
    old, new = _parts(kept["signature"]), _parts(fresh["signature"])
    return (
        all(kept[key] == fresh[key] for key in ("schema", "ids"))
        and all(kept["basis"][key] == fresh["basis"][key] for key in ("captions", "references"))
        and all(old[key] == new[key] for key in _COMMON)
    )


def _parts(signature: str) -> dict[str, str]:
    return dict(part.split(":", 1) for part in signature.split("|"))
