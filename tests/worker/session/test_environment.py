"""What a rank writes down of its environment."""

import pytest

from scaling.worker.session.environment import driver_version


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (
            "NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@host)",
            "580.159.04",
        ),
        ("NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release Build", "570.86.15"),
        ("something else", None),
    ],
)
def test_the_driver_s_version_is_not_taken_from_the_processor_s_name(tmp_path, line, version):
    path = tmp_path / "proc/driver/nvidia/version"
    path.parent.mkdir(parents=True)
    path.write_text(f"NVRM version: {line}\nGCC version:  gcc version 11.4.0\n")
    assert driver_version(tmp_path) == version


def test_without_the_driver_there_is_no_version(tmp_path):
    assert driver_version(tmp_path) is None
