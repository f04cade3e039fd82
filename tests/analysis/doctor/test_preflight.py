"""What differs between the ranks of a run stands in its report.

Ranks that share a device, and gradients through host memory, are labelled.
"""

import json
from types import SimpleNamespace

import pytest
from support.simulated_cluster import write_facts

from scaling.analysis.doctor.differences import differences
from scaling.analysis.doctor.preflight import inspect, labels
from scaling.records.launch import Launches
from scaling.records.paths import RunFolder

ENV = {"schema": 1, "host": 0, "torch": "2.13.0", "driver": "570.86.15", "device_uuid": None}


def run(tmp_path, *environments, telemetry=None):
    folder = RunFolder(tmp_path)
    launch = folder.launch(0)
    launch.path.mkdir(parents=True)
    for rank, changes in enumerate(environments):
        write_facts(launch, 0, {**ENV, "rank": rank, "environment": {}, **changes})
    if telemetry:
        launch.telemetry(0).write_text("\n".join(map(json.dumps, telemetry)) + "\n")
    return folder


def seen(folder, ranks=3):
    """What preflight finds in the files of a run on one host."""
    return inspect(Launches(folder, SimpleNamespace(ranks=ranks, hosts=1)))


def node(fake_nvml, **changes):
    """A host's telemetry with one GPU that is changed."""
    from scaling.hardware.devices import Host
    from scaling.hardware.nvml import Gpus
    from scaling.hardware.sampler import head, sample

    nvml = fake_nvml(2)
    for name, value in changes.items():
        setattr(nvml.gpus[1], name, value)
    gpus = Gpus(nvml)
    return [head(0, gpus, Host()), *(sample(gpus, Host()) for _ in range(3))]


def test_equal_ranks_are_nothing_to_speak_of(tmp_path):
    assert seen(run(tmp_path, {}, {})).warnings == ()


def test_a_rank_with_another_torch_is_named_with_the_remedy(tmp_path):
    (said,) = seen(run(tmp_path, {}, {}, {"torch": "2.12.0"})).warnings
    assert said == (
        "torch differs: 2.13.0 on ranks 0-1, 2.12.0 on rank 2; install the same torch on every host"
    )


@pytest.mark.parametrize(
    ("change", "told"), [({"torch": "2.12.0"}, "torch: 2.13.0, 2.12.0"), ({}, ""), ({"pid": 7}, "")]
)
def test_launches_on_unlike_machines_are_not_averaged_without_a_word(tmp_path, change, told):
    """A job that is requeued may go on on nodes of another kind."""
    folder = run(tmp_path, {}, {})
    second = folder.launch(1)
    second.path.mkdir()
    for rank in range(2):
        write_facts(second, 0, {**ENV, "rank": rank, "environment": {}, **change})
    warnings = seen(folder).warnings
    assert [told in line for line in warnings if "launches ran" in line] == [True] * bool(told)


def test_a_variable_that_one_rank_lacks(tmp_path):
    (said,) = seen(run(tmp_path, {"environment": {"NCCL_ALGO": "Ring"}}, {})).warnings
    assert "env.NCCL_ALGO differs: Ring on rank 0, unset on rank 1" in said


def test_a_link_that_is_not_as_promised(tmp_path, fake_nvml):
    ranks = ({"device_uuid": "0000-0000"}, {"device_uuid": "0000-0001"})
    said = seen(run(tmp_path, *ranks, telemetry=node(fake_nvml, width=8))).warnings
    assert any(s.startswith("rank 1: GPU 1: its PCIe link runs at x8 of x16") for s in said)


def test_a_device_that_fell_off_the_bus_is_named_by_its_number(tmp_path, fake_nvml):
    (said,) = seen(run(tmp_path, {}, telemetry=node(fake_nvml, lacks={"HandleByIndex"}))).warnings
    assert said.startswith("GPU 1: NVML lists it and cannot open it (GPU is lost); ")


def test_samples_go_to_the_rank_that_has_the_device(tmp_path, fake_nvml):
    ranks = ({"device_uuid": "0000-0001"}, {"device_uuid": "0000-0000"})
    found = seen(run(tmp_path, *ranks, telemetry=node(fake_nvml, sm_mhz=900))).samples
    assert [found[0, rank].sm_mhz[0] for rank in (0, 1)] == [900, 1900]


def test_a_host_without_devices_has_no_samples(tmp_path):
    assert seen(run(tmp_path, {}, {})).samples == {}


def seconds(*shares, cores_busy=2.0):
    """Telemetry of a host, a sample a second: what share of its busy time its hypervisor took in each."""
    head = {"t": "head", "schema": 1, "host": 0, "hostname": "guest", "gpus": [], "nics": [], "nodes": {}}
    lines, taken = [head | {"acs_bridges": None}], 0.0
    for second, share in enumerate((0.0, *shares)):
        taken += share * cores_busy
        system = {"cpu_busy_ns": int(second * cores_busy * 1e9), "cpu_stolen_ns": int(taken * 1e9)}
        lines.append({"t": "sample", "time_ns": second * 10**9, "gpus": [], "system": system})
    return lines


def test_time_that_a_hypervisor_took_is_told_by_second(tmp_path):
    (found,) = seen(run(tmp_path, {}, telemetry=seconds(0.0, 0.08, 0.02, 0.3))).stolen
    assert found.hostname == "guest"
    assert found.shares == pytest.approx((0.0, 0.08, 0.02, 0.3))
    assert (found.often, found.notable) == (2, True)


def test_on_an_idle_machine_a_moment_that_was_taken_is_little(tmp_path):
    (found,) = seen(run(tmp_path, {}, telemetry=seconds(*[0.5] * 10, cores_busy=0.02))).stolen
    assert found.shares == pytest.approx([0.01] * 10)
    assert not found.notable


def test_telemetry_that_does_not_tell_of_a_hypervisor_says_nothing(tmp_path):
    lines = seconds(0.5, 0.5)
    for line in lines[1:]:
        del line["system"]["cpu_stolen_ns"]
    assert seen(run(tmp_path, {}, telemetry=lines)).stolen == ()


def test_every_launch_counts(tmp_path):
    folder = run(tmp_path, {}, telemetry=seconds(0.0, 0.1))
    again = folder.launch(1)
    again.path.mkdir()
    again.telemetry(0).write_text("\n".join(map(json.dumps, seconds(0.4))) + "\n")
    (found,) = seen(folder).stolen
    assert found.shares == pytest.approx((0.0, 0.1, 0.4))


def test_ranks_that_share_a_device_name_it_alike(tmp_path, fake_nvml):
    ranks = [{"device_uuid": uuid} for uuid in ("0000-0001", "0000-0001", "0000-0000")]
    found = seen(run(tmp_path, *ranks, telemetry=node(fake_nvml))).samples
    assert [found[0, rank].device for rank in range(3)] == ["0/1", "0/1", "0/0"]


@pytest.mark.parametrize(("other", "differ"), [(2**36 - 2**12, False), (2**35, True), (None, True)])
def test_memory_that_differs_by_what_firmware_keeps_is_as_much(other, differ):
    found = differences({0: {"memory_bytes": 2**36}, 1: {"memory_bytes": other}})
    assert [one.key for one in found] == (["memory_bytes"] if differ else [])


def ranks(*uuids, backend="gloo", device="cuda", hosts=None):
    """What each wrote down of itself: env-<r>.json."""
    hosts = hosts or [0] * len(uuids)
    own = {"device": device, "backend": backend}
    return {
        r: {**own, "host": h, "device_uuid": u} for r, (u, h) in enumerate(zip(uuids, hosts, strict=True))
    }


def test_gloo_ranks_on_one_device_are_host_staged_and_share_it():
    shared, staged = labels(ranks("a", "a", "a", "a"))
    assert shared.startswith("ranks 0-3 share one device")
    assert staged.startswith("host-staged: Gloo carries the gradients through host memory")


def test_gloo_ranks_with_a_device_each_are_host_staged_only():
    (staged,) = labels(ranks("a", "b"))
    assert "host-staged" in staged


def test_nccl_ranks_that_share_a_device_go_over_no_link():
    shared, nccl = labels(ranks("a", "b", "a", backend="nccl"))
    assert shared.startswith("ranks 0 and 2 share one device")
    assert "its traffic crosses no link" in nccl


@pytest.mark.parametrize(
    "facts",
    [
        ranks("a", "b", backend="nccl"),
        ranks("a"),
        ranks("a", "a", backend="nccl", hosts=[0, 1]),  # a UUID is a host's own
        ranks(None, None, device="cpu"),
        {0: {"host": 0}, 1: {"host": 0}},
        {},
    ],
)
def test_a_device_each_and_nccl_need_no_label(facts):
    assert labels(facts) == ()
