from importlib.metadata import EntryPoint

import pytest

from gradwire import registry
from gradwire.errors import SpecError, UnknownIdError


def _colours() -> registry.Registry[str]:
    colours = registry.Registry("colours")
    colours.register("red")("#f00")
    colours.register("blue")("#00f")
    return colours


def test_register_returns_what_it_registers():
    assert _colours().register("green")("#0f0") == "#0f0"


def test_registry_lists_ids_in_order():
    assert list(_colours()) == ["blue", "red"]
    assert len(_colours()) == 2


def test_a_second_claim_on_an_id_is_refused():
    colours = _colours()
    with pytest.raises(SpecError, match=r"colours id='red' is not free: '#f00' has it"):
        colours.register("red")("#e00")
    assert colours["red"] == "#f00"


def test_an_unknown_id_is_told_with_the_known_ones():
    with pytest.raises(UnknownIdError, match="colours='mauve' is not one of: blue, red"):
        _colours()["mauve"]


def test_entry_points_are_loaded_once_on_the_first_unknown_id(monkeypatch):
    asked = []

    def entry_points(*, group: str) -> list[EntryPoint]:
        asked.append(group)
        return [
            EntryPoint("pi", "math:pi", group),
            EntryPoint("red", "math:e", group),  # ours stays
        ]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    colours = _colours()
    assert colours["red"] == "#f00"
    assert asked == []
    assert colours["pi"] == pytest.approx(3.14159, abs=1e-5)
    assert colours["red"] == "#f00"
    with pytest.raises(UnknownIdError):
        colours["mauve"]
    assert asked == ["gradwire.colours"]
