from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from gradwire.errors import UnknownIdError
from gradwire.sim.catalogue import NETWORKS, Gemm, Product, find_network
from gradwire.sim.catalogue.convolutional import resnet
from gradwire.sim.catalogue.transformer import bert_large, gpt2, llama

PUBLISHED = {
    "lenet5": (61_706, 10),
    "vgg16": (138_357_544, 32),
    "resnet18": (11_689_512, 62),
    "resnet50": (25_557_032, 161),
    "resnet50_v1": (25_557_032, 161),
    "resnet152": (60_192_808, 467),
    "efficientnet_b0": (5_288_548, 213),
    "vit_b16": (86_567_656, 152),
    "bert_large": (335_141_888, 391),
    "gpt2_small": (124_439_808, 148),
    "gpt2_medium": (354_823_168, 292),
    "gpt2_large": (774_030_080, 436),
    "gpt2_xl": (1_557_611_200, 580),
    "llama_7b": (6_738_415_616, 291),
    "llama_70b": (68_976_648_192, 723),
    "mlp": (4_836_874, 8),
    "digits": (548_746, 8),
    "text": (10_868_736, 77),
}


PAGE = Path(__file__).parents[3] / "docs/explanation/compute-models.md"
ROW = re.compile(r"^\| `(\w+)`.*? \| ([0-9,]+) \| ([0-9]+) \|$", re.MULTILINE)


def test_docs_state_the_sizes_of_the_catalogue():
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    stated = {name: (int(numel.replace(",", "")), int(tensors)) for name, numel, tensors in rows}
    assert len(stated) == 14
    assert stated.items() <= PUBLISHED.items()


def test_table_of_sizes_is_complete():
    assert set(PUBLISHED) == set(NETWORKS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_network_has_exactly_the_published_parameters(name):
    network = find_network(name)
    assert (network.numel, len(network.parameters)) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_are_unique_and_belong_to_their_layer(name):
    network = find_network(name)
    layers = [layer.name for layer in network.layers]
    parameters = [p.name for p in network.parameters]
    assert len(set(layers)) == len(layers)
    assert len(set(parameters)) == len(parameters)


@pytest.mark.parametrize(
    ("name", "giga_products"),
    [
        ("vgg16", 15.47),
        ("resnet18", 1.81),
        ("resnet50", 4.09),
        ("resnet152", 11.51),
        ("efficientnet_b0", 0.386),
    ],
)
def test_convolutions_multiply_as_often_as_is_known(name, giga_products):
    # Multiply-accumulates of one image of 224 x 224, as torchvision lists them.
    assert find_network(name).flops() / 2e9 == pytest.approx(giga_products, rel=0.005)


@pytest.mark.parametrize("network", [gpt2(), llama(), bert_large()], ids=lambda n: n.name)
def test_transformers_multiply_each_weight_once_for_each_token(network):
    products = [p for layer in network.layers for p in layer.products if p.has_weight]
    rows = max(p.rows for p in products)
    weights = sum(p.weight_numel for p in products if p.rows == rows)
    shared = sum(p.forward(1).flops for p in products if p.rows == rows)
    assert shared == 2 * rows * weights


@pytest.mark.parametrize("name", PUBLISHED)
def test_only_the_layer_at_the_data_has_no_input_gradient(name):
    ends = [layer.has_input_gradient for layer in find_network(name).layers]
    assert all(ends[1:])


def test_weights_of_products_are_the_parameters_of_their_layer():
    for layer in find_network("resnet152").layers:
        for product in layer.products:
            assert product.weight_numel == layer.parameters[0].entry.numel


def test_tied_embedding_is_due_first_and_the_head_has_no_parameters():
    network = gpt2()
    assert network.layers[0].parameters[0].entry.shape == (50257, 768)
    assert network.layers[-1].parameters == ()
    assert network.layers[-1].products[0].weight_numel == 50257 * 768


def test_resnet_with_strides_first_has_fewer_products():
    assert resnet(50, strides_first=True).flops() < resnet(50).flops()
    assert resnet(50, strides_first=True).flops() / 2e9 == pytest.approx(3.86, rel=0.01)


def test_gradient_products_cost_as_much_as_the_forward_product():
    product = Product(rows=49, inner=16, columns=32, window=9, groups=2)
    flops = product.forward(4).flops
    assert product.input_gradient(4).flops == flops
    assert product.weight_gradient(4).flops == flops


def test_attention_multiplies_the_samples_of_a_batch_apart():
    scores = Product(rows=8, inner=4, columns=8, groups=3, has_weight=False)
    assert scores.forward(5) == Gemm(8, 4, 8, 15)
    assert scores.weight_gradient(5) == Gemm(4, 8, 8, 15)
    assert scores.weight_numel == 0


def test_images_shrink_to_seven():
    last = [p for layer in resnet(18).layers for p in layer.products if p.window == 9][-1]
    assert math.isqrt(last.rows) == 7


def test_unknown_network_names_the_known_ones():
    with pytest.raises(UnknownIdError, match="resnet50"):
        find_network("resnet51")
