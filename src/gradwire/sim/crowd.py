"""Hardware of a machine whose cores several ranks share, as in the lab."""

from __future__ import annotations

from dataclasses import replace

from gradwire.hardware import Hardware, Line


def crowded(hardware: Hardware, ranks: int) -> Hardware:
    """Return the speeds that each of many ranks on one machine has.

    Codecs and copies take as many times longer as there are ranks for each
    core. Links stay as they are: those of the lab are limited, not shared.

    Args:
        hardware: Speeds of a rank that has a core to itself.
        ranks: How many there are on the machine.

    Example:
        >>> from gradwire.hardware import Device, LinkSpeed
        >>> link = LinkSpeed(0.0, 1e9)
        >>> alone = Hardware(Device(cores=2), {"encode int4": Line(0.0, 1e-9)}, link, link)
        >>> crowded(alone, 4).kernels["encode int4"].s_per_byte
        2e-09
    """
    share = max(1.0, ranks / hardware.device.cores)
    device = replace(
        hardware.device,
        copy_bytes_per_s=hardware.device.copy_bytes_per_s / share,
        launch_s=hardware.device.launch_s * share,
    )
    kernels = {
        name: Line(line.fixed_s * share, line.s_per_byte * share, line.spread)
        for name, line in hardware.kernels.items()
    }
    return replace(hardware, device=device, kernels=kernels)
