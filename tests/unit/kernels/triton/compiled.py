"""Compiles Triton kernels for a GPU that need not be there, and reads the machine code."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import re
import subprocess
import tempfile

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.a-z]*)")
_AMD_INSTRUCTION = re.compile(r"\s+([a-z][a-z0-9_]+)\s")
_ACCESS = re.compile(r"(LDG|STG|LDGSTS)(\.|$)")
_WIDTH = re.compile(r"\.(128|64|U16|S16|16|U8|S8|8)(\.|$)")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler made of a kernel.

    Attributes:
        registers: Of a thread.
        spilled_bytes: Stores and loads of spilled registers, and the stack.
        opcodes: How often each instruction occurs.
    """

    registers: int
    spilled_bytes: int
    opcodes: collections.Counter

    @property
    def size(self) -> int:
        """Instructions in all."""
        return self.opcodes.total()

    def count(self, pattern: str) -> int:
        """Count instructions whose name begins with a pattern."""
        return sum(n for name, n in self.opcodes.items() if re.match(pattern, name))

    def accesses(self) -> collections.Counter:
        """Count accesses to global memory by width, as `LDG.128`."""
        widths = collections.Counter()
        for name, count in self.opcodes.items():
            if access := _ACCESS.match(name):
                width = _WIDTH.search(name)
                widths[f"{access[1]}.{width[1] if width else '32'}"] += count
        return widths


def compile_for(target: int | str, kernel, types: dict, constants: dict, **options) -> Compiled:
    """Compile a kernel.

    Args:
        target: 80, 90, 100 (sm_80 ...) or "gfx942".
        kernel: What to compile.
        types: Of its run-time arguments: "*fp32", "i64", ...; pointers are
            taken to be multiples of 16, "i32:16" says so of a number.
        constants: Its other arguments.
        options: Of the launch.
    """
    attributes = {}
    signature = dict.fromkeys(constants, "constexpr")
    for name, text in types.items():
        signature[name], _, hint = text.partition(":")
        if hint or text.startswith("*"):
            attributes[kernel.arg_names.index(name),] = [["tt.divisibility", 16]]
    ordered = {name: signature[name] for name in kernel.arg_names}
    source = ASTSource(kernel, ordered, constants, attributes)
    is_amd = isinstance(target, str)
    log = io.StringIO()
    with knobs.compilation.scope(), knobs.nvidia.scope(), contextlib.redirect_stdout(log):
        knobs.compilation.always_compile = True
        knobs.nvidia.dump_ptxas_log = True
        gpu = GPUTarget("hip", target, 64) if is_amd else GPUTarget("cuda", target, 32)
        made = triton.compile(source, target=gpu, options=options)
    if is_amd:
        return _read_amd(made.asm["amdgcn"])
    return _read_nvidia(made.asm["cubin"], log.getvalue())


def _number(pattern: str, text: str) -> int:
    return int(re.search(pattern, text)[1])


def _read_nvidia(cubin: bytes, log: str) -> Compiled:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-sass", file.name]
        code = subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL)
    found = (_INSTRUCTION.match(line) for line in code.splitlines())
    names = collections.Counter(m[1] for m in found if m and not m[1].startswith("NOP"))
    spills = (r"(\d+) bytes stack", r"(\d+) bytes spill stores", r"(\d+) bytes spill loads")
    spilled_bytes = sum(_number(pattern, log) for pattern in spills)
    return Compiled(_number(r"Used (\d+) registers", log), spilled_bytes, names)


def _read_amd(code: str) -> Compiled:
    found = (_AMD_INSTRUCTION.match(line) for line in code.splitlines())
    names = collections.Counter(m[1] for m in found if m)
    spilled = _number(r"\.vgpr_spill_count:\s*(\d+)", code)
    return Compiled(_number(r"\.vgpr_count:\s*(\d+)", code), 4 * spilled, names)
