"""Tables as papers print them, in three forms."""

from __future__ import annotations

import pytest

from evaluate.scores import COLUMNS, Scores
from evaluate.significance import Difference, Interval
from pipeline.tables import difference_table, domain_table, percent, render, score_table

CORPUS = dict(zip(COLUMNS, (0.808, 0.6, 0.5, 0.391, 0.292, 0.586, 1.312), strict=False))
SCORES = Scores(
    ids=("1",), corpus=CORPUS, per_image={}, domains={"in-domain": {"CIDEr": 0.9}, "mine": CORPUS}
)


def test_text_is_aligned_in_the_order_of_the_papers() -> None:
    table = score_table({"M2": SCORES}, intervals={"M2": {"Bleu_1": Interval(low=0.8, high=0.82)}})
    assert render(table).splitlines() == [
        "         B-1   B-2   B-3   B-4     M     R      C    S",
        "M2      80.8  60.0  50.0  39.1  29.2  58.6  131.2  n/a",
        "  95 %  ±1.0   n/a   n/a   n/a   n/a   n/a    n/a  n/a",
    ]


def test_markdown() -> None:
    table = score_table({"a|b": SCORES}, columns=("Bleu_4", "CIDEr"))
    assert render(table, "markdown").splitlines() == [
        "|  | B-4 | C |",
        "| --- | ---: | ---: |",
        r"| a\|b | 39.1 | 131.2 |",
    ]


def test_latex_escapes_what_latex_would_read() -> None:
    table = score_table({r"50%_a\b": SCORES}, columns=("CIDEr",))
    lines = render(table, "latex").splitlines()
    assert lines[0] == r"\begin{tabular}{lr}"
    assert r"50\%\_a\textbackslash{}b & 131.2 \\" in lines


def test_domains_are_columns_with_the_whole_set_last() -> None:
    table = domain_table(SCORES, columns=("CIDEr", "SPICE"))
    assert table.headings == ("", "in", "mine", "overall")
    assert table.rows == [("C", "90.0", "131.2", "131.2"), ("S", "n/a", "n/a", "n/a")]


def test_differences_keep_their_sign() -> None:
    found = Difference(value=-0.0123, low=-0.02, high=0.001, p=0.0421)
    table = difference_table({"b - a": {"CIDEr": found}}, columns=("CIDEr", "SPICE"))
    assert table.rows == [
        ("b - a", "-1.2", "n/a"),
        ("  95 % low", "-2.0", "n/a"),
        ("  95 % high", "+0.1", "n/a"),
        ("  p", "0.042", "n/a"),
    ]


@pytest.mark.parametrize(("value", "text"), [(None, "n/a"), (0.0, "0.0"), (1.2346, "123.5")])
def test_percent(value: float | None, text: str) -> None:
    assert percent(value) == text
