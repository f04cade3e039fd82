"""nvidia-smi's CSV, and telemetry beside it; both from fakes of one device."""

import sys

import pytest

from scaling.hardware.nvml import Gpus


@pytest.fixture
def smi(gpu_parts):
    return gpu_parts.smi


def test_names_lose_their_units_and_what_is_not_there_is_none(smi):
    text = "name, clocks.current.sm [MHz], power.draw [W], ecc.mode.current\nFake H100, 1905, [N/A], [Not Supported]\n"
    assert smi.parse(text) == {
        "name": "Fake H100",
        "clocks.current.sm": "1905",
        "power.draw": None,
        "ecc.mode.current": None,
    }


@pytest.mark.parametrize("text", ["", "No devices were found\n", "a, b\n1\n", "a\n1\n2\n"])
def test_anything_else_is_refused_with_what_was_expected(smi, text):
    with pytest.raises(ValueError, match="a line of names and one of values"):
        smi.parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1905", 1905.0),
        ("652.31", 652.31),
        ("0x0000000000000004", 4.0),
        ("Enabled", 1.0),
        ("Disabled", 0.0),
        ("Fake H100", "Fake H100"),
        (None, None),
    ],
)
def test_figures_and_words(smi, text, value):
    assert smi.number(text) == value


ANSWERS = {
    "name": "Fake H100",
    "uuid": "GPU-0000-0000",
    "driver_version": "570.86.15",
    "power.limit": "700.00",
    "clocks.max.sm": "1980",
    "pcie.link.gen.max": "5",
    "pcie.link.width.max": "16",
    "persistence_mode": "Enabled",
    "ecc.mode.current": "Enabled",
    "clocks.current.sm": "1890",
    "clocks.current.memory": "2600",
    "clocks_throttle_reasons.active": "0x0000000000000000",
    "power.draw": "651.20",
    "temperature.gpu": "60",
    "utilization.gpu": "97",
    "pcie.link.gen.current": "5",
    "pcie.link.width.current": "16",
    "ecc.errors.uncorrected.volatile.total": "0",
    "memory.used": "424",
    "memory.reserved": "600",
}
PROGRAM = """\
#!{python}
import sys
answers = {answers!r}
fields = next(a for a in sys.argv if a.startswith("--query-gpu=")).partition("=")[2].split(",")
assert "--format=csv,nounits" in sys.argv and "--id=GPU-0000-0000" in sys.argv
for field in fields:
    if field not in answers:
        sys.exit(f'Field "{{field}}" is not a valid field to query.\\n')
print(", ".join(f"{{field}} [unit]" for field in fields))
print(", ".join(answers[field] for field in fields))
"""


@pytest.fixture
def program(tmp_path):
    """program(**changed): a stand-in for nvidia-smi of an older driver; a field that is None is not known to it."""

    def make(**changed):
        answers = {
            k: v for k, v in (ANSWERS | {k.replace("__", "."): v for k, v in changed.items()}).items() if v
        }
        path = tmp_path / "nvidia-smi"
        path.write_text(PROGRAM.format(python=sys.executable, answers=answers))
        path.chmod(0o755)
        return str(path)

    return make


def of(rows):
    return {row.what: row.met for row in rows}


def test_all_fields_of_a_healthy_device_agree_and_an_older_name_stands_for_a_newer(smi, program, fake_nvml):
    found = of(smi.beside(Gpus(fake_nvml(1)), program()))
    assert len(found) == len(smi.FACTS) + len(smi.SAMPLES) + 1
    assert set(found.values()) == {True}


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"pcie__link__width__current": "8"}, "pcie.link.width.current"),
        ({"clocks__current__sm": "1200"}, "clocks.current.sm"),
        ({"memory__used": "4000"}, "memory.used and memory.reserved"),
        ({"clocks_throttle_reasons__active": "0x0000000000000040"}, "clocks_event_reasons.active"),
    ],
)
def test_what_telemetry_has_otherwise_is_named(smi, program, fake_nvml, change, missed):
    found = of(smi.beside(Gpus(fake_nvml(1)), program(**change)))
    assert [name for name, met in found.items() if met is False] == [missed]


def test_a_field_that_telemetry_does_not_get_is_missed_and_one_that_nvidia_smi_lacks_is_not_judged(
    smi, program, fake_nvml
):
    nvml = fake_nvml(1)
    nvml.gpus[0].lacks.add("Temperature")
    found = of(smi.beside(Gpus(nvml), program(power__draw="[N/A]", utilization__gpu=None)))
    assert found["temperature.gpu"] is False
    assert found["power.draw"] is None
    assert "utilization.gpu" not in found


def test_its_own_words_where_it_fails(smi, tmp_path):
    broken = tmp_path / "nvidia-smi"
    broken.write_text(
        "#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not talk to the driver' >&2\nexit 9\n"
    )
    broken.chmod(0o755)
    with pytest.raises(RuntimeError, match="could not talk to the driver"):
        smi.query(["name"], "GPU-0000-0000", str(broken))
