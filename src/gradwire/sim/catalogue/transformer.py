"""Transformers: ViT-B/16, BERT-large, GPT-2, Llama 2.

Attention is taken as fused: scores of `tokens x tokens` never reach memory.
Sources: Dosovitskiy et al., arXiv:2010.11929; Devlin et al., arXiv:1810.04805;
Radford et al. 2019 and the configurations of openai/gpt-2; Touvron et al.,
arXiv:2307.09288.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradwire.sim.catalogue.base import LayerShape, Network, Product, linear, norm, weights

_RESIDUAL = 3
_ACTIVATION = 2


def vit_b16() -> Network:
    """Describe ViT-B/16 for images of 224 x 224, with torchvision's names.

    Example:
        >>> vit_b16().numel
        86567656
    """
    width, patches, tokens = 768, 196, 197
    patch = LayerShape(
        "conv_proj",
        weights("conv_proj", weight=(width, 3, 16, 16), bias=(width,)),
        (Product(patches, 3, width, window=256, rows_in=224 * 224),),
        has_input_gradient=False,
    )
    embedding = LayerShape(
        "embedding",
        weights("", class_token=(1, 1, width), **{"encoder.pos_embedding": (1, tokens, width)}),
        moved_numel=_RESIDUAL * tokens * width,
    )
    layers = [patch, embedding]
    for i in range(12):
        prefix = f"encoder.layers.encoder_layer_{i}"
        names = ("ln_1", "self_attention", "self_attention.out_proj", "ln_2", "mlp.0", "mlp.3")
        layers += _block([f"{prefix}.{name}" for name in names], width, tokens, 12)
    layers += [norm("encoder.ln", tokens * width, width), linear("heads.head", width, 1000)]
    return Network("vit_b16", tuple(_in_projection(layer) for layer in layers))


def _in_projection(layer: LayerShape) -> LayerShape:
    """Give the fused input projection the names of `torch.nn.MultiheadAttention`."""
    if not layer.name.endswith("self_attention"):
        return layer
    shapes = [p.entry.shape for p in layer.parameters]
    named = weights(layer.name, in_proj_weight=shapes[0], in_proj_bias=shapes[1])
    return replace(layer, parameters=named)


def bert_large(tokens: int = 512) -> Network:
    """Describe BERT-large, uncased, with its pooler and without a head.

    Args:
        tokens: Length of a sequence.

    Example:
        >>> bert_large().numel
        335141888
    """
    width = 1024
    tables = {"word": 30522, "position": 512, "token_type": 2}
    shapes = {f"{name}_embeddings.weight": (rows, width) for name, rows in tables.items()}
    layers = [
        LayerShape(
            "embeddings",
            weights("embeddings", **shapes),
            moved_numel=5 * tokens * width,
            has_input_gradient=False,
        ),
        norm("embeddings.LayerNorm", tokens * width, width),
    ]
    for i in range(24):
        prefix = f"encoder.layer.{i}"
        layers += _bert_layer(prefix, width, tokens)
    layers.append(linear("pooler.dense", width, width, moved=_ACTIVATION * width))
    return Network("bert_large", tuple(layers), "sequences")


def _bert_layer(prefix: str, width: int, tokens: int) -> list[LayerShape]:
    numel = tokens * width
    projections = [
        linear(f"{prefix}.attention.self.{name}", width, width, rows=tokens)
        for name in ("query", "key", "value")
    ]
    return [
        *projections,
        _attention(f"{prefix}.attention.self", width, tokens, heads=16),
        linear(
            f"{prefix}.attention.output.dense", width, width, rows=tokens, moved=_RESIDUAL * numel
        ),
        norm(f"{prefix}.attention.output.LayerNorm", numel, width),
        linear(
            f"{prefix}.intermediate.dense",
            width,
            4 * width,
            rows=tokens,
            moved=_ACTIVATION * 4 * numel,
        ),
        linear(f"{prefix}.output.dense", 4 * width, width, rows=tokens, moved=_RESIDUAL * numel),
        norm(f"{prefix}.output.LayerNorm", numel, width),
    ]


def gpt2(size: str = "small", tokens: int = 1024) -> Network:
    """Describe GPT-2 with its head tied to the token embedding.

    The embedding comes first and is due first; the head at the end has no
    parameters of its own.

    Args:
        size: `"small"`, `"medium"`, `"large"` or `"xl"`.
        tokens: Length of a sequence.

    Example:
        >>> gpt2().numel
        124439808
    """
    depth, width, heads = {
        "small": (12, 768, 12),
        "medium": (24, 1024, 16),
        "large": (36, 1280, 20),
        "xl": (48, 1600, 25),
    }[size]
    vocabulary = 50257
    layers = [
        LayerShape(
            "wte",
            weights("wte", weight=(vocabulary, width)),
            moved_numel=_ACTIVATION * tokens * width,
            has_input_gradient=False,
        ),
        LayerShape("wpe", weights("wpe", weight=(1024, width)), (), _RESIDUAL * tokens * width),
    ]
    for i in range(depth):
        names = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
        layers += _block([f"h.{i}.{name}" for name in names], width, tokens, heads)
    layers.append(norm("ln_f", tokens * width, width))
    layers.append(_head("lm_head", width, vocabulary, tokens))
    return Network(f"gpt2_{size}", tuple(layers), "sequences")


def llama(size: str = "7b", tokens: int = 4096) -> Network:
    """Describe Llama 2 of 7 or 70 billion parameters.

    Args:
        size: `"7b"` or `"70b"`.
        tokens: Length of a sequence.

    Example:
        >>> llama().numel
        6738415616
    """
    depth, width, hidden, heads, key_heads = {
        "7b": (32, 4096, 11008, 32, 32),
        "70b": (80, 8192, 28672, 64, 8),
    }[size]
    vocabulary = 32000
    layers = [
        LayerShape(
            "embed_tokens",
            weights("embed_tokens", weight=(vocabulary, width)),
            moved_numel=_ACTIVATION * tokens * width,
            has_input_gradient=False,
        )
    ]
    for i in range(depth):
        sizes = (width, hidden, heads, key_heads)
        layers += _llama_layer(f"layers.{i}", sizes, tokens)
    layers.append(norm("norm", tokens * width, width, bias=False))
    layers.append(_with_weight(_head("lm_head", width, vocabulary, tokens), (vocabulary, width)))
    return Network(f"llama_{size}", tuple(layers), "sequences")


def _llama_layer(prefix: str, sizes: tuple[int, int, int, int], tokens: int) -> list[LayerShape]:
    width, hidden, heads, key_heads = sizes
    numel, keys = tokens * width, width // heads * key_heads

    def project(name: str, inner: int, columns: int, moved: int = 0) -> LayerShape:
        return linear(
            f"{prefix}.{name}", inner, columns, rows=tokens, bias=False, moved=moved * tokens
        )

    return [
        norm(f"{prefix}.input_layernorm", numel, width, bias=False),
        project("self_attn.q_proj", width, width, _ACTIVATION * width),
        project("self_attn.k_proj", width, keys, _ACTIVATION * keys),
        project("self_attn.v_proj", width, keys),
        _attention(f"{prefix}.self_attn", width, tokens, heads),
        project("self_attn.o_proj", width, width, _RESIDUAL * width),
        norm(f"{prefix}.post_attention_layernorm", numel, width, bias=False),
        project("mlp.gate_proj", width, hidden, _ACTIVATION * hidden),
        project("mlp.up_proj", width, hidden, _RESIDUAL * hidden),
        project("mlp.down_proj", hidden, width, _RESIDUAL * width),
    ]


def _block(names: Sequence[str], width: int, tokens: int, heads: int) -> list[LayerShape]:
    """Describe a pre-norm block: norm, attention, norm, perceptron of 4 times the width."""
    first, project, out, second, up, down = names
    numel = tokens * width
    return [
        norm(first, numel, width),
        linear(project, width, 3 * width, rows=tokens),
        _attention(f"{project}.scores", width, tokens, heads),
        linear(out, width, width, rows=tokens, moved=_RESIDUAL * numel),
        norm(second, numel, width),
        linear(up, width, 4 * width, rows=tokens, moved=_ACTIVATION * 4 * numel),
        linear(down, 4 * width, width, rows=tokens, moved=_RESIDUAL * numel),
    ]


def _attention(name: str, width: int, tokens: int, heads: int) -> LayerShape:
    """Describe scores and mixing of values, fused: four tensors are read or written."""
    size = width // heads
    scores = Product(tokens, size, tokens, groups=heads, has_weight=False)
    mix = Product(tokens, tokens, size, groups=heads, has_weight=False)
    return LayerShape(f"{name}.attention", (), (scores, mix), 4 * tokens * width)


def _head(name: str, width: int, vocabulary: int, tokens: int) -> LayerShape:
    """Describe logits and their cross entropy, without parameters."""
    product = Product(tokens, width, vocabulary)
    return LayerShape(name, (), (product,), _RESIDUAL * tokens * vocabulary, kernels=3)


def _with_weight(layer: LayerShape, shape: Sequence[int]) -> LayerShape:
    return replace(layer, parameters=weights(layer.name, weight=shape))
