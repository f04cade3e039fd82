"""A made-up /proc and /sys, and this machine's own."""

import struct

import pytest

from scaling.hardware.devices import Host, distance


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text) if isinstance(text, bytes) else file.write_text(text)


def test_a_card_and_its_place(tmp_path):
    device = tmp_path / "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    card = tmp_path / "sys/class/infiniband/mlx5_0"
    card.mkdir(parents=True)
    (card / "device").symlink_to(device)
    links = tmp_path / "sys/bus/pci/devices"
    links.mkdir(parents=True)
    (links / "0000:01:00.0").symlink_to(device)
    (nic,) = Host(tmp_path).facts()["nics"]
    assert (nic["name"], nic["kind"], nic["numa_node"]) == ("mlx5_0", "infiniband", 1)
    assert nic["pci"] == ["pci0000:00", "0000:00:01.0", "0000:01:00.0"]


def test_an_empty_machine_has_nothing_and_says_so(tmp_path):
    sample = Host(tmp_path).sample()
    assert sample["cpu_mhz"] is None
    assert sample["memory_available_bytes"] is None


def test_this_machine_has_a_load():
    sample = Host().sample()
    assert sample["cpu_busy_ns"] > sample["cpu_stolen_ns"] >= 0
    assert sample["memory_available_bytes"] > 2**20


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (["p0", "b0", "g0"], ["p0", "b0", "n0"], "PIX"),
        (["p0", "b0", "b1", "g0"], ["p0", "b0", "b2", "n0"], "PIX"),
        (["p0", "b0", "s0", "b1", "g0"], ["p0", "b0", "s1", "b2", "n0"], "PXB"),
        (["p0", "b0", "g0"], ["p0", "b1", "n0"], "PHB"),
        (["p0", "b0", "g0"], ["p1", "b0", "n0"], "SYS"),
        ([], ["p0"], None),
    ],
)
def test_distances(a, b, expected):
    assert distance(a, b, nodes=(0, 1)) == expected


def test_a_socket_has_several_host_bridges():
    """An EPYC or Xeon has a root bus for each group of lanes: another one is not another socket."""
    a, b = ["p0", "b0", "g0"], ["p1", "b0", "n0"]
    assert distance(a, b, nodes=(0, 0)) == "NODE"
    assert distance(a, b, nodes=(0, None)) is None


def test_bridges_that_redirect(tmp_path):
    for name, control in (("a", 1), ("b", 0)):
        config = bytearray(512)
        struct.pack_into("<I", config, 0x100, 0x000D | (1 << 16))
        struct.pack_into("<H", config, 0x106, control)
        write(tmp_path, f"sys/bus/pci/devices/{name}/class", "0x060400\n")
        write(tmp_path, f"sys/bus/pci/devices/{name}/config", bytes(config))
    assert Host(tmp_path).facts()["acs_bridges"] == 1
