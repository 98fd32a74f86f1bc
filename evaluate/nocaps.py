"""Scores per domain, as nocaps reports them: in, near, out, and all images together.

Each domain is scored as a set of its own, as published nocaps evaluations do: CIDEr counts its
document frequencies over the domain's references alone, so the overall value is no mean.
Source: Agrawal et al., nocaps: novel object captioning at scale, ICCV 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evaluate.cider import DocumentFrequency, cider_d
from evaluate.errors import EvaluateError
from evaluate.pairs import Id
from evaluate.significance import Summed

DOMAINS = ("in-domain", "near-domain", "out-domain")
_NAMED = 10


def domain_scores(
    metrics: Sequence[Summed],
    references: Mapping[Id, Sequence[str]],
    candidates: Mapping[Id, str],
    domains: Mapping[Id, str],
    table: DocumentFrequency | None = None,
) -> dict[str, dict[str, float]]:
    """Domain -> column -> corpus value. Captions are tokenised; rows as in `references`.

    nocaps' domains come first and in its order, any others follow as they appear. Raises
    EvaluateError when an image has no domain, naming it.
    """
    images = list(references)
    missing = [image for image in images if image not in domains]
    if missing:
        shown = ", ".join(str(image) for image in missing[:_NAMED])
        raise EvaluateError(
            f"no domain for {len(missing)} of {len(images)} images ({shown}); give every image"
            f" one of {', '.join(DOMAINS)} or names of your own"
        )
    found = dict.fromkeys(domains[image] for image in images)
    order = [d for d in DOMAINS if d in found] + [d for d in found if d not in DOMAINS]
    return {
        domain: _scores(
            metrics,
            np.array([domains[image] == domain for image in images]),  # (N,)
            {image: references[image] for image in images if domains[image] == domain},
            candidates,
            table,
        )
        for domain in order
    }


def _scores(
    metrics: Sequence[Summed],
    chosen: np.ndarray,
    references: Mapping[Id, Sequence[str]],
    candidates: Mapping[Id, str],
    table: DocumentFrequency | None,
) -> dict[str, float]:
    values: dict[str, float] = {}
    for metric in metrics:
        values.update(metric.of(chosen))
    if "CIDEr" in values and table is None:
        values["CIDEr"], _ = cider_d(references, {image: candidates[image] for image in references})
    return values
