"""NG-SAN against its equations written out, one pair of rows at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from caption.errors import CaptionError
from caption.models import normalized_geometry as ng
from caption.models.normalized_geometry import NormalizedGeometryConfig
from caption.registry import MODELS
from caption.transformer import ImageRows, PlainSelfAttention, Transformer, count_parameters
from tests.caption.toy import WIDTH, random_features

COCO_WORDS = 9488  # the 9,487 words of the paper and one entry more
SIZES = {"width": 16, "heads": 2, "feed_forward": 24, "encoder_layers": 1, "decoder_layers": 1}


def config(**settings: object) -> NormalizedGeometryConfig:
    return NormalizedGeometryConfig(**{**SIZES, "geometry_width": 6, **settings})


def full_size(layers: int, **settings: object) -> float:
    """Millions of parameters at the paper's sizes."""
    chosen = NormalizedGeometryConfig(encoder_layers=layers, decoder_layers=layers, **settings)
    entry = MODELS["normalized_geometry"]
    with torch.device("meta"):
        model = entry.build(chosen, {"regions": 2048}, COCO_WORDS)
    return count_parameters(model) / 1e6


@pytest.mark.parametrize(("layers", "printed"), [(1, 18.1), (2, 25.5), (4, 40.2), (6, 54.9)])
def test_parameters_of_table_1(layers: int, printed: float) -> None:
    assert round(full_size(layers, normalize="none", geometry=()), 1) == printed
    assert round(full_size(layers, geometry=()), 1) == printed


@pytest.mark.parametrize(
    ("settings", "millions"),
    [
        ({"geometry": (), "absolute": "embedding"}, 40.2),  # as printed
        ({"geometry": ("independent",)}, 40.2),  # as printed
        ({"geometry": ("query",)}, 41.3),  # printed 41.5: its geometry width is not given
        ({"geometry": ("key",)}, 41.3),
        ({"geometry": ("query",), "geometry_width": 80}, 41.5),  # the width that gives as printed
    ],
)
def test_parameters_of_table_4(settings: dict[str, object], millions: float) -> None:
    assert round(full_size(4, normalize="none", **settings), 1) == millions


def test_instance_norm_counts_real_rows_only() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, generator=random) * 3 + 1
    real = torch.tensor([[True] * 5, [True, True, True, False, False]])
    found = ng.InstanceNorm(3, affine=False)(x, real)
    for image, count in ((0, 5), (1, 3)):
        for channel in range(3):
            values = x[image, :count, channel]
            wanted = (values - values.mean()) / (values.var(unbiased=False) + 1e-5).sqrt()
            torch.testing.assert_close(found[image, :count, channel], wanted)
    assert not found[1, 3:].any()


def test_one_row_becomes_zero() -> None:
    x = torch.full((1, 1, 4), 7.0)
    assert not ng.InstanceNorm(4, affine=False)(x, torch.ones(1, 1, dtype=torch.bool)).any()


def test_batch_norm_knows_real_rows_of_the_whole_batch() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 2, generator=random)
    real = torch.arange(4) < torch.tensor([4, 2, 1])[:, None]
    norm = ng.BatchNorm(2)
    found = norm(x, real)
    rows = x[real]
    wanted = (rows - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(found[real], wanted)
    assert not found[~real].any()
    torch.testing.assert_close(norm.norm.running_mean, 0.1 * rows.mean(0))


@pytest.mark.parametrize("normalize", ["none", "query", "key", "both"])
def test_nsa_is_the_softmax_of_normalized_queries_and_keys(normalize: str) -> None:
    torch.manual_seed(0)
    attention = ng.NormalizedAttention(config(normalize=normalize))
    features = random_features(2, width=16)
    x, real = features.rows["regions"], features.mask["regions"]
    source = attention.project_rows(x, real)
    found = attention.weights(x, source, real[:, None])  # (B, H, N, N)
    norm = ng.InstanceNorm(16, affine=False)
    q, k = attention.query(x), attention.key(x)
    q = norm(q, real) if normalize in ("query", "both") else q
    k = norm(k, real) if normalize in ("key", "both") else k
    for image in range(2):
        count = int(real[image].sum())
        for head in range(2):
            part = slice(8 * head, 8 * head + 8)
            logits = q[image, :count, part] @ k[image, :count, part].T / math.sqrt(8)
            torch.testing.assert_close(
                found[image, head, :count, :count], logits.softmax(-1), atol=1e-6, rtol=1e-5
            )
    mixed = attention(x, source, real[:, None])
    wanted = attention.join(found @ source.values, x)
    torch.testing.assert_close(mixed, wanted, atol=1e-6, rtol=1e-5)


def test_the_bias_of_a_normalized_query_changes_nothing() -> None:
    torch.manual_seed(0)
    attention = ng.NormalizedAttention(config(normalize="query"))
    features = random_features(2, width=16)
    x, mask = features.rows["regions"], features.mask["regions"][:, None]
    before = attention.queries(x, mask)
    with torch.no_grad():
        attention.query.bias.add_(5.0)
    torch.testing.assert_close(attention.queries(x, mask), before, atol=1e-5, rtol=1e-4)


def test_relative_geometry_of_two_boxes() -> None:
    boxes = torch.tensor([[[0.0, 0.0, 10.0, 20.0], [30.0, 10.0, 50.0, 50.0]]])
    found = ng.pair_geometry(boxes)[0]
    # centres (5, 10) and (40, 30), sizes 10 x 20 and 20 x 40
    wanted = [math.log(35 / 10), math.log(20 / 20), math.log(10 / 20), math.log(20 / 40)]
    torch.testing.assert_close(found[0, 1], torch.tensor(wanted))
    back = [math.log(35 / 20), math.log(20 / 40), math.log(2), math.log(2)]
    torch.testing.assert_close(found[1, 0], torch.tensor(back))
    torch.testing.assert_close(found[0, 0], torch.tensor([math.log(1e-3)] * 2 + [0.0, 0.0]))


def naive_bias(part: ng.PairBias, x: Tensor, pairs: Tensor) -> Tensor:
    """Equations 11 to 13, pair by pair."""
    images, count = x.shape[:2]
    heads, width = part.heads, part.width
    bias = torch.zeros(images, heads, count, count)
    for b in range(images):
        for i in range(count):
            for j in range(count):
                for h in range(heads):
                    own = slice(h * width, h * width + width)
                    geometry = part.embed(pairs[b, i, j]).relu()
                    geometry = geometry[own] if part.per_head else geometry
                    if part.kind == "independent":
                        value = (part.vectors.weight[h] @ geometry).relu()
                    elif part.kind == "query":
                        value = part.vectors(x[b, i])[own] @ geometry
                    else:
                        value = part.vectors(x[b, j])[own] @ geometry
                    bias[b, h, i, j] = value / math.sqrt(width)
    return bias


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("kind", ng.GEOMETRY)
@pytest.mark.parametrize("chunk", [None, 200])
def test_equations_11_to_13(
    kind: str, per_head: bool, chunk: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, and a few rows at a time; values and gradients."""
    torch.manual_seed(0)
    if chunk is not None:
        monkeypatch.setattr(ng, "CHUNK_BYTES", chunk)
    part = ng.PairBias(config(geometry_per_head=per_head), kind)
    features = random_features(2, rows=4, width=16)
    x = features.rows["regions"].requires_grad_()
    pairs = ng.pair_geometry(features.boxes["regions"])
    found, wanted = part(x, pairs), naive_bias(part, x, pairs)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)
    mix = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    inputs = [p for p in part.parameters() if p.requires_grad]
    inputs += [] if kind == "independent" else [x]
    for a, b in zip(
        torch.autograd.grad((found * mix).sum(), inputs),
        torch.autograd.grad((wanted * mix).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_summed_geometry_is_the_sum_of_its_kinds() -> None:
    torch.manual_seed(0)
    layer = ng.NormalizedGeometrySelfAttention(config(geometry=ng.GEOMETRY, normalize="none"))
    features = random_features(2, width=16)
    x, mask = features.rows["regions"], features.mask["regions"]
    image = ng.GeometryRows(mask, ng.pair_geometry(features.boxes["regions"]))
    bias = sum(kind(x, image.pairs) for kind in layer.geometry)
    rows = layer.attention.project(x)
    wanted = layer.attention(x, rows, mask[:, None], bias)
    torch.testing.assert_close(layer(x, image), wanted)


def saved_bytes(call) -> int:
    """Bytes that autograd keeps for the gradients of a call."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call()
    assert result.requires_grad
    return sum(kept.values())


def test_memory_does_not_grow_with_the_width_of_the_geometry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In chunks nothing of G (B, N, N, g) is kept; the geometry (B, N, N, 4) and q' are."""
    torch.manual_seed(0)
    part = ng.PairBias(config(geometry_width=64), "query")
    x = torch.randn(4, 30, 16)
    pairs = torch.randn(4, 30, 30, 4)
    whole = 4 * 30 * 30 * 64 * 4
    assert saved_bytes(lambda: part(x, pairs)) > whole
    monkeypatch.setattr(ng, "CHUNK_BYTES", whole // 10)
    vectors, small = 4 * 30 * 2 * 64 * 4, 4 * 30 * 30 * 4 * 4
    assert saved_bytes(lambda: part(x, pairs)) <= small + vectors + x.nbytes + 4096


def test_without_norm_and_geometry_it_is_plain_self_attention() -> None:
    """SAN."""
    torch.manual_seed(0)
    chosen = config(normalize="none", geometry=())
    plain = PlainSelfAttention(chosen)
    layer = ng.NormalizedGeometrySelfAttention(chosen)
    layer.load_state_dict(plain.state_dict())
    features = random_features(2, width=16)
    x, mask = features.rows["regions"], features.mask["regions"]
    wanted = plain(x, ImageRows(mask))
    found = layer(x, ng.GeometryRows(mask, None))
    torch.testing.assert_close(found, wanted)


def test_absolute_places() -> None:
    boxes = torch.tensor([[[10.0, 0.0, 30.0, 50.0]]])
    places = ng.relative_places(boxes, torch.tensor([[100.0, 50.0]]))
    torch.testing.assert_close(places, torch.tensor([[[0.2, 0.5, 0.2, 1.0]]]))
    waves = ng.place_sinusoids(places, 16)
    assert waves.shape == (1, 1, 16)
    torch.testing.assert_close(waves[0, 0, 0], torch.sin(torch.tensor(20.0)))
    torch.testing.assert_close(waves[0, 0, 6], torch.cos(torch.tensor(50.0)))


def test_the_sides_cannot_be_told_apart() -> None:
    """The geometry is unsigned: a mirrored picture has the same captions (a limit of the paper)."""
    torch.manual_seed(0)
    entry = MODELS["normalized_geometry"]
    model = entry.build(config(), {"regions": WIDTH}, 11).eval()
    features = random_features(2)
    boxes = features.boxes["regions"].clone()
    boxes[..., [0, 2]] = 100 - features.boxes["regions"][..., [2, 0]]
    tokens = torch.tensor([[2, 5, 6], [2, 7, 8]])
    first = model(model.encode(features), tokens)
    features.boxes["regions"] = boxes
    torch.testing.assert_close(model(model.encode(features), tokens), first, atol=1e-5, rtol=1e-5)
    features.boxes["regions"] = boxes * torch.tensor([1.0, 1.0, 1.4, 1.0])
    assert (model(model.encode(features), tokens) - first).abs().max() > 1e-4


@pytest.mark.parametrize("norm", ng.NORMS)
def test_bfloat16_is_near(norm: str) -> None:
    torch.manual_seed(0)
    model = MODELS["normalized_geometry"].build(config(norm=norm), {"regions": WIDTH}, 11).eval()
    features, tokens = random_features(2), torch.tensor([[2, 5, 6], [2, 7, 8]])
    wanted = model(model.encode(features), tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(model.encode(features), tokens)
        found.float().sum().backward()
    torch.testing.assert_close(found.float(), wanted, atol=0.1, rtol=0.1)


def test_geometry_without_boxes_is_refused() -> None:
    model = MODELS["normalized_geometry"].build(config(), {"regions": WIDTH}, 11)
    assert isinstance(model, Transformer)
    features = random_features(2)
    features.boxes.pop("regions")
    with pytest.raises(CaptionError, match=r"'regions', and some images have no boxes"):
        model.encode(features)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"normalize": "queries"}, "model.normalize is 'queries', wanted one of none, query"),
        ({"attention_on_attention": True}, "has no gate"),
        ({"norm": "group"}, "model.norm is 'group'"),
        ({"geometry": ("query", "query")}, "each kind at most once"),
        ({"geometry": ("content",)}, "model.geometry is 'content'"),
        ({"geometry_width": 0}, "wanted 1 or more"),
        ({"absolute": "sinusoid", "width": 20, "heads": 2}, "wanted a multiple of 8"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], message: str) -> None:
    with pytest.raises(CaptionError, match=message):
        config(**settings)
