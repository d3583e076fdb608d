from __future__ import annotations

import pytest

from gradwire.errors import SpecError, UnknownIdError
from gradwire.hardware import Hardware
from gradwire.sim.catalogue import Gemm, find_network
from gradwire.sim.compute import DEVICES, SystolicArray, find_device, workload
from gradwire.sim.compute.nodes import MODELLED_SPECS, find_hardware
from gradwire.spec import parse_reducer
from gradwire.workload import Workload

ARRAY = SystolicArray(128, 128, 0.94e9)


def test_cycles_of_folds_add_up():
    one = ARRAY.cycles(Gemm(128, 10, 128))
    assert one == 2 * 128 + 128 + 10 - 2
    assert ARRAY.cycles(Gemm(129, 10, 128)) == 2 * one
    assert ARRAY.cycles(Gemm(256, 10, 256)) == 4 * one
    assert ARRAY.cycles(Gemm(128, 10, 128, repeats=3)) == 3 * one


def test_weights_at_rest_let_the_rows_pass():
    array = SystolicArray(128, 128, 0.94e9, "weight_stationary")
    assert array.cycles(Gemm(1000, 128, 128)) == 2 * 128 + 128 + 1000 - 2
    assert array.cycles(Gemm(1000, 129, 128)) == 2 * (2 * 128 + 128 + 1000 - 2)


def test_layer_at_the_data_is_spared_its_input_gradient():
    conv = find_network("resnet50_v1").layers[0]
    product = conv.products[0]
    expected = ARRAY.cycles(product.weight_gradient(32)) / ARRAY.clock_hz
    assert ARRAY.backward_s(conv, 32, "float32") == pytest.approx(expected)


def test_workload_has_the_networks_parameters_in_order_of_use():
    network = find_network("gpt2_small")
    work = workload(network, find_device("a100"), 8, "bfloat16")
    assert work.parameters == network.parameters
    assert work.layers[0].parameters[0].name == "wte.weight"
    assert Workload.from_json(work.to_json()) == work


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["lenet5", "efficientnet_b0", "vit_b16", "bert_large", "text"])
def test_backward_takes_longer_than_forward_and_time_grows_with_the_batch(name, device):
    small, large = (workload(find_network(name), find_device(device), n) for n in (4, 8))
    assert 0 < small.forward_s < small.backward_s
    assert small.forward_s < large.forward_s <= 2 * small.forward_s
    assert small.optimiser_s == large.optimiser_s > 0


def test_newer_devices_are_faster():
    times = [
        workload(find_network("vit_b16"), find_device(name), 64, "float16").compute_s
        for name in ("v100", "a100", "h100", "h200")
    ]
    assert times == sorted(times, reverse=True)


def test_dtype_that_a_device_lacks_is_refused():
    with pytest.raises(SpecError, match=r"bfloat16.*v100.*float32, float16"):
        workload(find_network("lenet5"), find_device("v100"), 8, "bfloat16")


def test_empty_batch_is_refused():
    with pytest.raises(SpecError, match="batch_size"):
        workload(find_network("lenet5"), find_device("v100"), 0)


@pytest.mark.parametrize("find", [find_device, find_hardware])
def test_unknown_device_names_the_known_ones(find):
    with pytest.raises(UnknownIdError, match="a100"):
        find("b300")


@pytest.mark.parametrize("values", [(0, 8, 1e9), (8, 8, 0.0), (8, 8, 1e9, "input")])
def test_impossible_array_is_refused(values):
    with pytest.raises(SpecError, match="SystolicArray"):
        SystolicArray(*values)


@pytest.mark.parametrize("name", DEVICES)
def test_hardware_says_that_it_is_modelled(name):
    hardware = find_hardware(name)
    assert "modelled" in hardware.fingerprint
    assert "modelled" in hardware.device.name
    assert Hardware.from_json(hardware.to_json()) == hardware


def test_every_modelled_spec_has_both_kernels():
    kernels = find_hardware("h200").kernels
    for spec in MODELLED_SPECS:
        parse_reducer(spec)
        for step in ("encode", "decode"):
            assert kernels[f"{step} {spec}"].time_s(4e6) > 0


def test_kernels_are_no_faster_than_a_copy():
    hardware = find_hardware("a100")
    copy_s = 4e9 / hardware.device.copy_bytes_per_s
    assert all(
        line.time_s(4e9) > copy_s
        for name, line in hardware.kernels.items()
        if name.startswith("encode")
    )
    assert hardware.kernels["encode int2"].s_per_byte < hardware.kernels["encode int8"].s_per_byte
