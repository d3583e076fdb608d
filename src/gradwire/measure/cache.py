"""Measurements kept from run to run, by machine and topology."""

from __future__ import annotations

import json
import os
import platform
import time
import warnings
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile, gettempdir

import torch

from gradwire.errors import SpecError
from gradwire.hardware import Hardware
from gradwire.measure.device import available_cores, cpu_name
from gradwire.version import installed_version

MAX_AGE_S = 30 * 24 * 3600.0
"""Older measurements are taken anew: machines are moved and networks rebuilt."""

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Machine:
    """What a measurement holds for.

    Attributes:
        processor: Model name.
        cores: Those this process may use.
        threads: Threads of torch.
        gpu: Its name, or empty.
        torch: Version.
        gradwire: Version.
        hosts: Names of the machines, by node.
        world_size: Number of ranks, 1 without links.
        backend: Of `torch.distributed`, or empty.
        interface: Network interface that was asked for, or empty.
    """

    processor: str
    cores: int
    threads: int
    gpu: str
    torch: str
    gradwire: str
    hosts: tuple[str, ...] = ()
    world_size: int = 1
    backend: str = ""
    interface: str = ""

    @classmethod
    def here(cls, hosts: tuple[str, ...] = (), world_size: int = 1, backend: str = "") -> Machine:
        """Describe this machine.

        Args:
            hosts: Machines of the ranks, in order; this one if empty.
            world_size: Number of ranks.
            backend: Of `torch.distributed`, or empty.

        Example:
            >>> Machine.here() == Machine.here()
            True
        """
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
        variable = "NCCL_SOCKET_IFNAME" if backend == "nccl" else "GLOO_SOCKET_IFNAME"
        return cls(
            processor=cpu_name(),
            cores=available_cores(),
            threads=torch.get_num_threads(),
            gpu=gpu,
            torch=torch.__version__,
            gradwire=installed_version(),
            hosts=hosts or (platform.node(),),
            world_size=world_size,
            backend=backend,
            interface=os.environ.get(variable, "") if backend else "",
        )

    def fingerprint(self) -> str:
        """Return a short hash, equal for equal descriptions.

        Example:
            >>> len(Machine.here().fingerprint())
            16
        """
        text = json.dumps(asdict(self), sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Cached:
    """What the cache holds: a measurement, or the reason why it cannot be used."""

    hardware: Hardware | None
    reason: str | None


def folder() -> Path:
    """Return where measurements are kept: `gradwire` in the user's cache folder.

    Where the user has no home, as in some containers, the folder of temporary
    files takes its place.

    Source: XDG Base Directory Specification.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "gradwire"
    except RuntimeError:
        return Path(gettempdir()) / "gradwire"


def path_of(machine: Machine) -> Path:
    """Return the file of a topology: its name tells ranks, not versions.

    So a measurement by an older version is found, and called stale.
    """
    place = json.dumps([machine.hosts, machine.world_size, machine.backend, machine.interface])
    key = blake2b(place.encode(), digest_size=8).hexdigest()
    return folder() / f"hardware-{key}.json"


def save(hardware: Hardware, machine: Machine, path: Path | None = None) -> Path:
    """Write a measurement; whoever reads meanwhile sees the old file or the new one.

    Args:
        hardware: What was measured.
        machine: Of what.
        path: Where; its place in the cache if None.
    """
    target = path or path_of(machine)
    target.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "format": _FORMAT,
        "measured_s": time.time(),
        "machine": asdict(machine),
        "hardware": json.loads(hardware.to_json()),
    }
    text = json.dumps(data, indent=2, sort_keys=True)
    with NamedTemporaryFile(dir=target.parent, prefix=target.name, delete=False) as file:
        draft = Path(file.name)
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return target


def keep(hardware: Hardware, machine: Machine) -> None:
    """Write a measurement to the cache, or warn: nothing depends on it."""
    try:
        save(hardware, machine)
    except OSError as error:
        warnings.warn(
            f"what was measured cannot be kept: {error}; set XDG_CACHE_HOME to a folder for it",
            RuntimeWarning,
            stacklevel=3,
        )


def load(machine: Machine, path: Path | None = None, *, now_s: float | None = None) -> Cached:
    """Read the measurement of a machine, or say why there is none to use.

    Args:
        machine: What it must hold for.
        path: Where; its place in the cache if None.
        now_s: Seconds since 1970; the clock's if None.
    """
    source = path or path_of(machine)
    try:
        data = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Cached(None, "nothing was measured here yet")
    except (OSError, ValueError) as error:
        return Cached(None, f"{source} cannot be read: {error}")
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        return Cached(None, f"{source} has another format than {_FORMAT}")
    reason = _difference(data.get("machine"), machine)
    measured_s = data.get("measured_s")
    age_s = (time.time() if now_s is None else now_s) - (
        measured_s if isinstance(measured_s, int | float) else 0.0
    )
    if reason is None and not 0 <= age_s <= MAX_AGE_S:
        days = age_s / 24 / 3600
        reason = f"stale: measured {days:.0f} days ago, at most {MAX_AGE_S / 24 / 3600:.0f} count"
    if reason is not None:
        return Cached(None, reason)
    try:
        return Cached(Hardware.from_json(json.dumps(data.get("hardware"))), None)
    except SpecError as error:
        return Cached(None, f"{source}: {error}")


def _difference(found: object, machine: Machine) -> str | None:
    """Say in what a measurement is foreign or stale; None if in nothing."""
    if not isinstance(found, dict):
        return "foreign: it does not say where it was measured"
    for field, value in json.loads(json.dumps(asdict(machine))).items():
        if found.get(field) != value:
            kind = "stale" if field in ("torch", "gradwire") else "foreign"
            return f"{kind}: measured with {field} {found.get(field)!r}, here it is {value!r}"
    return None
