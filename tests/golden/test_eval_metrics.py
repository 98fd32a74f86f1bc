"""BLEU, ROUGE-L and CIDEr-D against golden values of pycocoevalcap 1.2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluate.bleu import bleu
from evaluate.cider import CiderReward, DocumentFrequency, cider_d
from evaluate.rouge import rouge_l
from evaluate.tokenizer import ptb_tokenize
from tests.golden.eval_files import golden_files, read_json

TOLERANCE = 1e-9


def given(images: list[dict[str, Any]]) -> tuple[dict[Any, list[str]], dict[Any, str]]:
    return (
        {image["id"]: image["refs_tok"] for image in images},
        {image["id"]: image["cand_tok"] for image in images},
    )


def from_raw(images: list[dict[str, Any]]) -> tuple[dict[Any, list[str]], dict[Any, str]]:
    texts = iter(ptb_tokenize([text for image in images for text in image["refs"]]))
    references = {image["id"]: [next(texts) for _ in image["refs"]] for image in images}
    candidates = ptb_tokenize([image["cand"] for image in images])
    return references, dict(zip(references, candidates, strict=True))


@pytest.mark.parametrize("tokens", [given, from_raw])
def test_corpus_and_image_values(golden_dir: Path, tokens: Any) -> None:
    for path in golden_files(golden_dir, "metrics_*.json.gz"):
        golden = read_json(path)
        references, candidates = tokens(golden["images"])
        corpus, per_image = bleu(references, candidates)
        found = {f"Bleu_{k + 1}": (corpus[k], per_image[k]) for k in range(4)}
        found["ROUGE_L"] = rouge_l(references, candidates)
        found["CIDEr"] = cider_d(references, candidates)
        for name, (value, values) in found.items():
            where = f"{path.name} {name}"
            assert abs(value - golden["corpus"][name]) <= TOLERANCE, where
            difference = np.abs(np.subtract(values, golden["per_image"][name]))
            assert difference.max() <= TOLERANCE, f"{where} image {difference.argmax()}"


STYLES = {  # golden list -> document, over ids, cut
    "m2": ("caption", False, None),
    "image_df_words": ("image", False, None),
    "rl_len16": ("image", True, 16),
    "rl_nolimit": ("image", True, None),
}


@pytest.mark.parametrize("name", STYLES)
def test_rewards_against_a_fixed_table(golden_dir: Path, name: str, tmp_path: Path) -> None:
    document, over_ids, cut = STYLES[name]
    for path in golden_files(golden_dir, "ciderd*.json.gz"):
        golden = read_json(path)
        style: dict[str, Any] = {}
        if over_ids:
            ids = {word: str(place + 1) for place, word in enumerate(golden["vocab"])}
            style = {
                "ids": ids,
                "unknown": str(golden["unk_id"]),
                "eos": str(golden["eos_id"]),
            }
        table = DocumentFrequency.build(
            {place: image["refs"] for place, image in enumerate(golden["df_images"])},
            document,  # type: ignore[arg-type]
            **style,
        )
        table.save(tmp_path / "table.npz")
        expected = golden["expected"][name]
        cases = golden["cases"]
        for one in (table, DocumentFrequency.load(tmp_path / "table.npz")):
            reward = CiderReward(
                {place: case["refs"] for place, case in enumerate(cases)},
                one,
                eos=over_ids,
                max_length=cut,
            )
            scores = reward.reward(
                [place for place, case in enumerate(cases) for _ in case["cands"]],
                [text.split() for case in cases for text in case["cands"]],
            )
            assert np.abs(scores - expected["scores"]).max() <= TOLERANCE
            assert abs(scores.mean() - expected["mean"]) <= TOLERANCE


def test_counts_of_the_tables(golden_dir: Path) -> None:
    for path in golden_files(golden_dir, "ciderd*.json.gz"):
        golden = read_json(path)
        references = {place: image["refs"] for place, image in enumerate(golden["df_images"])}
        table = DocumentFrequency.build(references, "caption")
        assert table.documents == golden["expected"]["m2"]["n_docs"]
        assert len(table) == golden["expected"]["m2"]["df_entries_before_after_scoring"][0]
        for ngram, count in golden["df_samples"]["m2"]:
            assert table.counts[ngram] == count
