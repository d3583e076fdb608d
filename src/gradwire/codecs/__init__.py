"""Codecs: values to bytes and back, one module a family."""

from gradwire.codecs import float, planes, quantize, sign, sparse  # noqa: A004 - importing registers them
from gradwire.codecs.base import CODECS, Codec, Segment, Segments, build

__all__ = [
    "CODECS",
    "Codec",
    "Segment",
    "Segments",
    "build",
    "float",
    "planes",
    "quantize",
    "sign",
    "sparse",
]
