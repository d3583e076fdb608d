"""Kernels compile for GPUs that are not there, to the machine code that is claimed.

Limits hold for one version of Triton, the pinned one: on others these tests
are skipped, as a compiler may spend registers and instructions otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed")

from compiled import compile_for  # noqa: E402 - after the skip

from gradwire.kernels import forms  # noqa: E402
from gradwire.kernels.triton import (  # noqa: E402
    floats,
    hadamard,
    low_rank,
    mixed,
    planes,
    quantize,
    rotated,
    sign,
    sparse,
    statistics,
)
from gradwire.kernels.triton.tiles import OPTIONS, TILE  # noqa: E402

PINNED = "3.7.1"

pytestmark = pytest.mark.skipif(
    triton.__version__ != PINNED, reason=f"limits are those of triton {PINNED}"
)

TABLE = {"rows_ptr": "*i32", "table_ptr": "*i64"}
PADS = dict.fromkeys(("pad0", "pad1", "pad2", "pad3"), "i32")
SOURCE = {"x_ptr": "*fp32", "residual_ptr": "*fp32"}
ENCODE = {**SOURCE, "bytes_ptr": "*u8", "scales_ptr": "*fp32", **TABLE, **PADS, "gain": "fp32"}
DECODE = {
    "scales_ptr": "*fp32",
    "out_ptr": "*fp32",
    **TABLE,
    "row_scales": "i32:16",
    "count": "i32",
    "divisor": "fp32",
}
BLOCKS = {"BLOCK": 256, "CHUNK": 256, "BLOCKS": TILE // 256}
FED = {"FEEDBACK": 1, "ALIGNED": True}
MEAN = {"BLOCK": 256, "GROUPS": TILE // 256, "ACCUMULATE": False, "ALIGNED": True}
WORDS = {"words_ptr": "*i32"}
BYTES = {"body_ptr": "*u8"}


class Case(NamedTuple):
    """A kernel, its arguments, and what must be in its code.

    Attributes:
        registers: Most of a thread; more would leave too few threads to hide
            the memory's delay.
        wide: Accesses of 16 bytes that must occur.
        instructions: Those that must occur, by target.
    """

    kernel: object
    types: dict
    constants: dict
    registers: int
    wide: tuple[str, ...] = ("LDG.128", "STG.128")
    instructions: Mapping = MappingProxyType({})


def _quantize(bits):
    constants = {"BITS": bits, "NEAREST": False, "L2": False, **BLOCKS, **FED}
    return Case(quantize.encode_kernel, {**ENCODE, **WORDS, "stream": "i64"}, constants, 128)


def _quantize_decode(bits):
    types = {**DECODE, **WORDS, "row_words": "i32:16"}
    return Case(quantize.decode_kernel, types, {"BITS": bits, **MEAN}, 96, ("STG.128",))


def _norms():
    types = {**ENCODE, **WORDS, "stream": "i64"}
    constants = {"BITS": 4, "NEAREST": False, "L2": True, **BLOCKS, **FED}
    return Case(quantize.encode_kernel, types, constants, 128)


def _rotated(form):
    types = {**ENCODE, **WORDS, "stream": "i64", "turn": "fp32"}
    constants = {"BITS": 4, "NEAREST": False, "WHOLE": 256, "FORM": form, **BLOCKS, **FED}
    return Case(rotated.encode_kernel, types, constants, 168, instructions=_matrix(form))


def _rotated_decode(form):
    types = {**DECODE, **WORDS, "row_words": "i32:16", "turn": "fp32"}
    constants = {"BITS": 4, "WHOLE": 256, "FORM": form, **MEAN}
    return Case(rotated.decode_kernel, types, constants, 168, ("STG.128",), _matrix(form))


def _planes():
    types = {**ENCODE, **WORDS, "stream": "i64", "plane_words": "i32:16"}
    return Case(planes.encode_kernel, types, {"BITS": 8, "PLANES": 4, **BLOCKS, **FED}, 128)


def _planes_decode():
    types = {**DECODE, **WORDS, "row_words": "i32:16", "plane_words": "i32:16"}
    return Case(planes.decode_kernel, types, {"BITS": 8, **MEAN}, 128, ("STG.128",))


def _mixed():
    types = {"senders_ptr": "*i64", "layouts_ptr": "*i64", "out_ptr": "*fp32", **TABLE}
    types |= {"count": "i32", "stretches": "i32", "divisor": "fp32"}
    constants = {"GROUPS": TILE // 256, "NATIVE": False, "ACCUMULATE": False, "ALIGNED": True}
    return Case(mixed.decode_kernel, types, constants, 168, ("STG.128",))


def _float8(native):
    constants = {"FORMAT": 3, "NATIVE": native, **BLOCKS, **FED}
    found = {90: r"F2FP\.SATFINITE\.E4M3", 100: r"F2FP\.SATFINITE\.E4M3"} if native else {}
    types = {**ENCODE, **BYTES}
    return Case(floats.encode_kernel, types, constants, 96, instructions=found)


def _float8_decode(native):
    constants = {"FORMAT": 3, "NATIVE": native, **MEAN}
    found = {90: r"F2FP\.F16\.E4M3", 100: r"F2FP\.F16\.E4M3"} if native else {}
    types = {**DECODE, **BYTES, "row_units": "i32:16"}
    return Case(floats.decode_kernel, types, constants, 128, ("STG.128",), found)


def _write(form):
    types = {**SOURCE, "cuts_ptr": "*i32", "before_ptr": "*i32", "totals_ptr": "*i32"}
    types |= {"places_ptr": "*i32", "numbers_ptr": "*fp32", **TABLE, "gain": "fp32", "tiles": "i32"}
    found = dict.fromkeys((80, 90, 100), r"HMMA") | {"gfx942": "v_mfma"}
    found = found if form == "matrix" else {}
    return Case(sparse.write_kernel, types, {"FORM": form, **FED}, 224, instructions=found)


def _hadamard(form):
    types = {"x_ptr": "*fp32", "out_ptr": "*fp32", "numel": "i32:16", "scale": "fp32"}
    constants = {"BLOCK": 256, "WHOLE": 256, "VALUES": 4096, "FORM": form}
    return Case(hadamard.hadamard_kernel, types, constants, 168, instructions=_matrix(form))


def _statistics(form):
    types = {"x_ptr": "*fp32", "thresholds_ptr": "*fp32", "sums_ptr": "*fp32"}
    types |= {"counts_ptr": "*i32", "numel": "i32:16", "tiles": "i32", "one": "fp32"}
    constants = {"THRESHOLDS": 4, "FORM": form}
    wide = ("LDGSTS.128",) if form == "matrix" else ("LDG.128",)
    return Case(statistics.statistics_kernel, types, constants, 224, wide, _matrix(form))


def _product(form):
    types = {"m_ptr": "*fp32", "q_ptr": "*fp32", "p_ptr": "*fp32"}
    types |= {"rows": "i32:16", "columns": "i32:16"}
    constants = {"ROWS": 64, "DEPTH": 32, "PRECISION": _precision(form)}
    wide = ("LDGSTS.128",)
    return Case(low_rank.product_kernel, types, constants, 128, wide, _matrix(form))


def _transposed(form):
    types = {"m_ptr": "*fp32", "p_ptr": "*fp32", "out_ptr": "*fp32"}
    types |= {"rows": "i32:16", "columns": "i32:16"}
    constants = {"COLUMNS": 64, "DEPTH": 32, "SPLIT": 8, "PRECISION": _precision(form)}
    wide = ("LDGSTS.128",)
    return Case(low_rank.transposed_kernel, types, constants, 128, wide, _matrix(form))


def _precision(form):
    with forms.using("low_rank", form):
        return low_rank.precision()


def _matrix(form):
    """Name the matrix instructions: of one warp, of four (sm_90), of the whole unit (sm_100)."""
    if form == "plain":
        return {}
    any_nvidia = r"(HMMA|HGMMA|UTC\w*MMA)"
    return dict.fromkeys((80, 90, 100), any_nvidia) | {"gfx942": "v_mfma"}


CASES = {
    "quantize_4": _quantize(4),
    "quantize_3": _quantize(3),
    "decode_4": _quantize_decode(4),
    "decode_3": _quantize_decode(3),
    "sign": Case(sign.encode_kernel, {**ENCODE, **WORDS}, {**BLOCKS, **FED}, 128),
    "float8": _float8(native=False),
    "float8_native": _float8(native=True),
    "float8_decode_native": _float8_decode(native=True),
    "write_plain": _write("plain"),
    "write_matrix": _write("matrix"),
    "norms": _norms(),
    "rotated_plain": _rotated("plain"),
    "rotated_matrix": _rotated("matrix"),
    "rotated_decode_plain": _rotated_decode("plain"),
    "rotated_decode_matrix": _rotated_decode("matrix"),
    "planes": _planes(),
    "planes_decode": _planes_decode(),
    "mixed": _mixed(),
    "hadamard_plain": _hadamard("plain"),
    "hadamard_matrix": _hadamard("matrix"),
    "statistics_plain": _statistics("plain"),
    "statistics_matrix": _statistics("matrix"),
    "product_matrix": _product("matrix"),
    "transposed_matrix": _transposed("matrix"),
}
EVERYWHERE = ("quantize_4", "float8", "write_matrix", "hadamard_matrix", "statistics_matrix")
RUNS = [(90, name) for name in CASES]
RUNS += [(target, name) for target in (80, 100) for name in EVERYWHERE]
RUNS += [(100, "float8_native")]


@pytest.mark.parametrize(("target", "name"), RUNS, ids=str)
def test_code_for_nvidia_is_what_is_claimed(target, name):
    case = CASES[name]
    code = compile_for(target, case.kernel, case.types, case.constants, **OPTIONS)
    assert code.spilled_bytes == 0
    assert code.registers <= case.registers
    assert set(case.wide) <= set(code.accesses()), code.accesses()
    if target in case.instructions:
        assert code.count(case.instructions[target]), sorted(code.opcodes)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_code_for_amd_is_what_is_claimed(name):
    case = CASES[name]
    code = compile_for("gfx942", case.kernel, case.types, case.constants, **OPTIONS)
    assert code.spilled_bytes == 0
    assert code.count(r"(buffer|global)_load_dwordx4")
    if "gfx942" in case.instructions:
        assert code.count(case.instructions["gfx942"])
