"""The position-aware Transformer against its equations written out, one pair of cells at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from caption.errors import CaptionError
from caption.features import Features
from caption.models import position_aware as pa
from caption.models.position_aware import PositionAwareConfig
from caption.registry import MODELS
from caption.transformer import Transformer
from tests.caption.toy import WIDTH, random_features

SIZES = {"width": 16, "heads": 2, "feed_forward": 24, "encoder_layers": 1, "decoder_layers": 1}


def config(**settings: object) -> PositionAwareConfig:
    return PositionAwareConfig(**{**SIZES, "grid": (4, 5), **settings})


def grid_rows(shapes: tuple[tuple[int, int], ...], count: int) -> pa.GridRows:
    down, across = pa.displacements(shapes, count, (4, 5))
    cells = torch.tensor([rows * columns for rows, columns in shapes])
    mask = torch.arange(count) < cells[:, None]
    return pa.GridRows(mask, down, across)


def edge(attention: pa.EdgeAttention, shape: tuple[int, int], i: int, j: int) -> Tensor:
    """E_ij = E_row[y_i - y_j] + E_col[x_i - x_j], y upwards, of tables that serve 4 x 5 cells."""
    (row_i, column_i), (row_j, column_j) = divmod(i, shape[1]), divmod(j, shape[1])
    up_i, up_j = -row_i, -row_j
    return attention.rows[up_i - up_j + 3] + attention.columns[column_i - column_j + 4]


def test_equations_1_to_3_image_feature_attention() -> None:
    torch.manual_seed(0)
    fusion = pa.ImageFeatureAttention(16, value=True)
    features = random_features(2, width=16)
    high, low = features.rows["pyramid_high"], features.rows["pyramid_low"]
    mask = features.mask["pyramid_low"]
    found = fusion(high, low, mask)
    for image in range(2):
        real = low[image, : int(mask[image].sum())]
        scores = (high[image] @ fusion.query.weight.T) @ (real @ fusion.key.weight.T).T
        weights = (scores / math.sqrt(16)).softmax(-1)
        wanted = weights @ (real @ fusion.value.weight.T) + high[image]
        torch.testing.assert_close(found[image], wanted, atol=1e-6, rtol=1e-5)


def test_image_feature_attention_as_printed_has_no_values_weights() -> None:
    fusion = pa.ImageFeatureAttention(16, value=False)
    assert [name for name, _ in fusion.named_parameters()] == ["query.weight", "key.weight"]


@pytest.mark.parametrize("value", [True, False])
def test_equations_4_and_5_equal_the_loop_over_pairs(value: bool) -> None:
    """Two images of different grids, so that one is padded."""
    torch.manual_seed(0)
    attention = pa.EdgeAttention(config(edge_value=value))
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(std=0.5)
    shapes = ((3, 4), (2, 5))
    x = torch.randn(2, 12, 16)
    found = attention.attend(x, grid_rows(shapes, 12))
    q, k, v = attention.query(x), attention.key(x), attention.value(x)
    for image, shape in enumerate(shapes):
        count = shape[0] * shape[1]
        for i in range(count):
            heads = []
            for head in range(2):
                part = slice(8 * head, 8 * head + 8)
                edges = [edge(attention, shape, i, j)[part] for j in range(count)]
                logits = torch.stack(
                    [
                        q[image, i, part] @ (k[image, j, part] + edges[j]) / math.sqrt(8)
                        for j in range(count)
                    ]
                )
                weights = logits.softmax(-1)
                heads.append(sum(weights[j] * (v[image, j, part] + edges[j]) for j in range(count)))
            wanted = attention.output(torch.cat(heads))
            torch.testing.assert_close(found[image, i], wanted, atol=1e-5, rtol=1e-4)


def test_the_example_of_algorithm_1() -> None:
    """Source (2, n), target (4, n - 3), columns and rows from below: E_row[3] + E_col[-2]."""
    down, across = pa.displacements(((4, 5),), 20, (4, 5))
    source, target = 0 * 5 + 1, 3 * 5 + 3  # rows count downwards from 0
    assert int(down[0, source, target]) - 3 == 3
    assert int(across[0, source, target]) - 4 == -2
    assert int(down[0, target, source]) - 3 == -3  # E_ij is not E_ji


def test_tables_have_a_vector_for_each_displacement() -> None:
    attention = pa.EdgeAttention(PositionAwareConfig())
    assert attention.rows.shape == (27, 256) and attention.columns.shape == (27, 256)


def test_one_shape_of_all_images_makes_the_places_once() -> None:
    down, across = pa.displacements(((2, 3),) * 7, 6, (4, 5))
    assert down.shape == across.shape == (1, 6, 6)
    ragged, _ = pa.displacements(((2, 3), (3, 2)), 6, (4, 5))
    assert ragged.shape == (2, 6, 6)
    assert torch.equal(ragged[0], down[0]) and not torch.equal(ragged[1], down[0])


@pytest.mark.parametrize(
    ("variant", "needs"),
    [
        ("vanilla", ("pyramid_high",)),
        ("fpn", ("pyramid_high", "pyramid_low")),
        ("front", ("pyramid_high", "pyramid_low")),
    ],
)
def test_variants_read_what_they_need(variant: str, needs: tuple[str, ...]) -> None:
    chosen = config(**pa.VARIANTS[variant])
    widths = dict.fromkeys(needs, WIDTH)
    model = MODELS["position_aware"].build(chosen, widths, 11)
    assert model.needs == needs


def test_front_is_one_block_that_adds_its_rows() -> None:
    torch.manual_seed(0)
    chosen = config(edges="front", fusion=False)
    part = pa.PyramidInput(chosen, 16, 0)
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter)
    features = random_features(2, width=16)
    x, image = part(features)
    rows = features.rows["pyramid_high"]
    assert isinstance(image, pa.GridRows) and part.front is not None
    torch.testing.assert_close(x, rows + part.front.attention.attend(rows, image))


def test_streams_may_have_any_name() -> None:
    chosen = config(stream="coarse", low_stream="fine")
    model = MODELS["position_aware"].build(chosen, {"coarse": WIDTH, "fine": WIDTH}, 11)
    features = random_features(2)

    def named(kept: dict) -> dict:
        return {"coarse": kept["pyramid_high"], "fine": kept["pyramid_low"]}

    renamed = Features(
        rows=named(features.rows),
        mask=named(features.mask),
        boxes=named(features.boxes),
        sizes=features.sizes,
        grid_shape=named(features.grid_shape),
    )
    assert isinstance(model, Transformer)
    assert model.encode(renamed).levels[-1].shape == (2, 5, 16)


def test_bfloat16_is_near() -> None:
    torch.manual_seed(0)
    widths = {"pyramid_high": WIDTH, "pyramid_low": WIDTH}
    model = MODELS["position_aware"].build(config(grid=(2, 5)), widths, 11).eval()
    features, tokens = random_features(2), torch.tensor([[2, 5, 6], [2, 7, 8]])
    wanted = model(model.encode(features), tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(model.encode(features), tokens)
        found.float().sum().backward()
    torch.testing.assert_close(found.float(), wanted, atol=0.1, rtol=0.1)


def test_rows_without_a_grid_and_grids_beyond_the_tables_are_refused() -> None:
    widths = {"regions": WIDTH, "pyramid_high": WIDTH, "pyramid_low": WIDTH}
    features = random_features(2)
    model = MODELS["position_aware"].build(config(stream="regions"), widths, 11)
    with pytest.raises(CaptionError, match="'regions' is no grid.*--preset imagenet-pyramid"):
        model.encode(features)
    model = MODELS["position_aware"].build(config(), widths, 11)
    tall = replace(features, grid_shape={"pyramid_high": ((5, 1), (3, 1))})
    with pytest.raises(CaptionError, match=r"5 x 1 cells, model.grid is 4 x 5.*model.grid=5,1"):
        model.encode(tall)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head_width": 4}, "plain heads"),
        ({"boxes": True}, "wanted model.boxes=false"),
        ({"edges": "some"}, "model.edges is 'some'"),
        ({"grid": (0, 3)}, "rows and columns from 1"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], message: str) -> None:
    with pytest.raises(CaptionError, match=message):
        config(**settings)
