"""Settings are shown with their meaning, and what is misspelt is wrong usage."""

from __future__ import annotations

from pathlib import Path

import pytest

from caption.config import TrainingConfig
from pipeline import recipe as recipes
from pipeline.cli import main
from pipeline.recipe import Recipe
from pipeline.settings import commented, settings_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", recipes.shipped())
def test_a_shown_recipe_is_a_recipe(name: str, tmp_path: Path) -> None:
    recipe = recipes.load(name)
    file = tmp_path / "own.yaml"
    file.write_text(commented(recipe), encoding="utf-8")
    own = recipes.load(str(file))
    assert own.resolved() == recipe.resolved()


def test_awkward_values_survive(tmp_path: Path) -> None:
    given = ("source='a: b # c'", "vocabulary.splits=[]", "scst.learning_rate=5e-6")
    recipe = recipes.load("flickr8k", given)
    (tmp_path / "own.yaml").write_text(commented(recipe), encoding="utf-8")
    own = recipes.load(str(tmp_path / "own.yaml"))
    assert (own.source, own.vocabulary.splits, own.scst.learning_rate) == ("a: b # c", (), 5e-6)


def test_every_setting_is_explained_in_the_docs() -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    rows = [f"| `{s.key}` | `{s.value}` | {s.meaning} |" for s in settings_of(TrainingConfig())]
    missing = [row for row in rows if row not in page]
    assert not missing, "docs/training.md lacks these rows:\n" + "\n".join(missing)
    assert all(setting.meaning for setting in settings_of(Recipe()) if setting.key != "model")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("tran", "did you mean 'train'?"),
        ("train --recipe flikr8k --show", "did you mean 'flickr8k'?"),
        ("train --recipe flickr8k --show -o xe.epoks=3", "did you mean 'epochs'?"),
        ("train --recipe flickr8k --show -o xe.schedule=lineer", "wanted one of noam, m2"),
        ("train --recipe flickr8k --show -o xe.epochs", "wanted key=value"),
        ("train --recipe flickr8k --show -o model.name=transformr", "did you mean 'transformer'?"),
        ("train --recipe flickr8k --features . --captions no.json --out run", "no.json"),
        ("extract . --preset imagenet-gird --out features", "did you mean 'imagenet-grid'?"),
        ("extract . --preset imagenet-grid --out features -o sizee=3", "did you mean 'size'?"),
        ("extract nowhere --preset imagenet-grid --out features", "nowhere"),
        ("scenes --out scenes -o signedd=0.3", "did you mean 'signed'?"),
        ("eval --results no.json --references no.json", "no.json"),
        ("eval --run . --metrics cidre", "wanted some of"),
        ("eval --run . --split test", "no run folder"),
        ("explain 1 --run .", "no run folder"),
        ("report .", "no run folder"),
        ("train --recipe flickr8k --show -o xe.epochs=-3", "xe.epochs is -3, wanted more than 0"),
        ("train --recipe flickr8k --show -o data.train_images=0", "wanted more than 0"),
        ("train --recipe flickr8k --show -o xe.patience", "such as xe.patience="),
        ("extract . --preset imagenet-grid --out features -o size", "such as size=224"),
        ("extract . --preset imagenet-grid --out features -o sizes", "such as size=224"),
        ("demo -o xe.epoks=3", "did you mean 'epochs'?"),
        ("demo --device tpu", "not available here"),
        ("caption nowhere.jpg --run .", "nowhere.jpg"),
    ],
)
def test_what_is_misspelt_exits_2(
    typed: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(typed.split())
    assert ended.value.code == 2 and said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
