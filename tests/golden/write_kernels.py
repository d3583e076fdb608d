"""Write the frozen payloads of tests/golden/kernels.json. Refuses to overwrite.

Run it only for a new format: a changed byte breaks exchange between versions.
"""

import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from gradwire.kernels.select import REFERENCE
from gradwire.spec import BitPlanes, Float, Quantize, Sign, Sparse

PATH = Path(__file__).with_name("kernels.json")
NUMELS = (300, 25)


def bucket() -> Tensor:
    """Values that need no random generator: a chirp over several magnitudes."""
    place = torch.arange(400, dtype=torch.float64)
    return (torch.sin(place * place / 7) * torch.exp(torch.cos(place / 50) * 3)).to(torch.float32)


def segments() -> Tensor:
    rows = [(1, 0, NUMELS[0], 512, 11), (310, 300, NUMELS[1], 0, -7)]
    return torch.tensor(rows, dtype=torch.int64)


def cases() -> dict[str, tuple]:
    """Name to op, arguments between segments and residual, payload size, last arguments."""
    out: dict[str, tuple] = {}
    for bits in range(1, 9):
        size = Quantize(bits).num_bytes(NUMELS)
        out[f"quantize bits={bits}"] = ("quantize_encode", (2**62 + 5, bits, 256, False), size)
    size = Quantize(4).num_bytes(NUMELS)
    out["quantize bits=4 nearest"] = ("quantize_encode", (0, 4, 256, True), size)
    for bits in (2, 4, 8):
        arguments = (2**62 + 5, bits, 256, False)
        size = Quantize(bits).num_bytes(NUMELS)
        out[f"quantize bits={bits} l2"] = ("quantize_encode", arguments, size, True)
    for planes in (8, 3):
        size = BitPlanes(8, planes).num_bytes(NUMELS)
        out[f"bit_planes 8:{planes}"] = ("planes_encode", (2**62 + 5, 8, planes, 256), size)
    out["sign"] = ("sign_encode", (256,), Sign(256).num_bytes(NUMELS))
    for name in ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2"):
        out[name] = ("float_encode", (name, 256), Float(name).num_bytes(NUMELS))
    sparse = Sparse(0.02, "threshold")
    capacities = torch.tensor([sparse.capacity(n) for n in NUMELS])
    cuts = torch.tensor([8.0, 0.5])
    out["sparse"] = ("sparse_encode", (cuts, capacities), sparse.num_bytes(NUMELS))
    return out


def encode(kernel, arguments: tuple, size: int, *more: bool) -> dict[str, str]:
    payload = torch.empty(size, dtype=torch.uint8)
    residual = bucket().flip(0) * 0.01
    kernel(bucket(), segments(), *arguments, residual, 0.0, payload, *more)
    data = {"payload": payload, "residual": residual.view(torch.uint8)}
    return {key: bytes(value.tolist()).hex() for key, value in data.items()}


def main() -> None:
    if PATH.exists():
        sys.exit(f"{PATH} exists; delete it by hand if the format is meant to change")
    frozen = {name: encode(REFERENCE[op], *rest) for name, (op, *rest) in cases().items()}
    PATH.write_text(json.dumps(frozen, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
