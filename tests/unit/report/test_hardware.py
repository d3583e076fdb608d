"""Tables of measured hardware."""

import io

from rich.console import Console

from gradwire.hardware import Device, Hardware, Line, LinkSpeed
from gradwire.report.hardware import render_hardware


def test_codecs_and_forms_have_rows_of_their_own():
    link = LinkSpeed(1e-3, 1e8, ranks=2)
    kernels = {
        "encode int4": Line(1e-6, 1e-9),
        "hadamard, plain": Line(1e-6, 5e-10, 0.07),
    }
    console = Console(width=100, file=io.StringIO())
    console.print(render_hardware(Hardware(Device(), kernels, link, link)))
    lines = console.file.getvalue().splitlines()
    codec = next(line for line in lines if "int4" in line)
    form = next(line for line in lines if "hadamard, plain" in line)
    assert codec.split()[1:] != form.split()[1:]
    assert "1 GB/s" in codec
    assert "2 GB/s" in form
    assert "7%" in form
