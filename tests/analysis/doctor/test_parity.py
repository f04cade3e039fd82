"""Ranks that part, layers that are wrong in one precision, steps that do not repeat, overflow."""

import dataclasses

import pytest

from scaling.analysis.doctor import parity
from scaling.analysis.doctor.examine import Evidence
from scaling.analysis.doctor.examine import machine as machine_of
from scaling.analysis.doctor.parity import parts_at
from scaling.analysis.results.doctor import ERROR, WARNING
from scaling.errors import InputError
from scaling.records.files import write_json


def one(found, said):
    problems = [p for p in found.problems if said in p.what]
    assert len(problems) == 1, [p.what for p in found.problems]
    return problems[0]


def test_equal_ranks_have_equal_bits(node):
    found = node.examine()
    assert [(row.precision, row.ranks) for row in found.parity.table] == [
        (name, (0, 1, 2, 3)) for name in ("fp64", "fp32", "bf16")
    ]
    assert not any(row.parts_at for row in found.parity.table)


def test_a_rank_with_another_flag_is_named_with_what_differs(node, a_record, a_layer):
    off = a_record(
        "fp32", (a_layer("0"), a_layer("1", 1.001, 1e-3), a_layer("2", 1.001, 1e-3)), digest="other"
    )
    node.change(3, facts={"flags.cudnn_tf32": True}, parity=(a_record("fp64"), off, a_record("bf16")))
    found = node.examine()
    problem = one(found, "fp32: rank 3 differs")
    assert problem.rank == 3
    assert problem.severity == ERROR
    assert "at 1 (1.0e-03 apart)" in problem.what
    assert "flags.cudnn_tf32 is True instead of False" in problem.what
    rows = [row for row in found.parity.table if row.precision == "fp32"]
    assert [(row.ranks, row.parts_at) for row in rows] == [((0, 1, 2), ""), ((3,), "1 (1.0e-03 apart)")]


def test_a_device_that_computes_wrong_with_nothing_else_to_blame(node, a_record, a_layer):
    off = a_record("fp32", (a_layer("0"), a_layer("1"), a_layer("2", 1.5, 0.5)), digest="other")
    node.change(1, parity=(a_record("fp64"), off, a_record("bf16")))
    problem = one(node.examine(), "differs from")
    assert problem.rank == 1
    assert "suspect the device" in problem.what
    assert "at 2 (5.0e-01 apart)" in problem.what


def test_a_layer_that_is_wrong_in_bf16_only(node, a_record, a_layer):
    wrong = a_record("bf16", (a_layer("0", error=0.004), a_layer("1", error=0.7), a_layer("2", error=0.7)))
    node.change(parity=(a_record("fp64"), a_record("fp32"), wrong))
    problem = one(node.examine(), "bf16: 1 is 70.0% off float64")
    assert problem.rank is None
    assert problem.severity == WARNING


def test_what_does_not_repeat(node, a_record):
    loose = a_record("fp32", repeat_parted="gradient of 1.weight", digest="once")
    node.change(0, parity=(a_record("fp64"), loose, a_record("bf16")))
    found = node.examine()
    assert (
        "not repeatable on rank 0: a second run differs at gradient of 1.weight"
        in one(found, "not repeat").what
    )
    assert one(found, "differs from").severity == WARNING  # what does not repeat cannot agree


def test_an_overflow_is_named_with_its_layer(node, a_record, a_layer):
    broken = a_record("fp16", (a_layer("0"), a_layer("1", error=None, not_finite=12)), scale=0.0)
    node.change(parity=(a_record("fp64"), a_record("fp32"), broken))
    problem = one(node.examine(), "fp16: overflow, 12 elements are not finite, first in 1")
    assert problem.severity == ERROR
    assert "bf16" in problem.remedy


def test_gradients_that_are_not_finite_are_an_overflow_too(node, a_record, a_layer):
    """In bf16 there is no scale to lower, and all outputs may be numbers."""
    gradients = (a_layer("0.weight", error=None, not_finite=5), a_layer("1.weight", error=None, not_finite=3))
    broken = a_record("bf16", gradients=gradients)
    node.change(parity=(a_record("fp64"), a_record("fp32"), broken))
    problem = one(node.examine(), "bf16: overflow, 3 elements are not finite, first in gradient of 1.weight")
    assert problem.severity == ERROR


def machine(node, a_record, **changes):
    values = {
        "schema": parity.FILE_SCHEMA,
        "model": "m(), batch 8, seed 0",
        "hostname": "elsewhere",
        "device": "Fake A100",
        "facts": {**node.checks[0].facts, "torch": "2.12.0"},
        "parity": (a_record("fp64"), a_record("fp32"), a_record("bf16")),
    }
    return parity.ParityFile(**{**values, **changes})


def test_another_machine_may_round_differently(node, a_record, a_layer):
    rounded = a_record("fp32", (a_layer("0"), a_layer("1", 1 + 1e-7), a_layer("2")), digest="other")
    other = machine(node, a_record, parity=(a_record("fp64"), rounded))
    found = node.examine(other=other)
    assert found.problems == ()
    row = found.parity.table[-2]
    assert (row.device, row.ranks) == ("elsewhere: Fake A100", ())
    assert row.parts_at.startswith("1 (1.0e-07")


def test_another_machine_that_is_wrong_is_told_from_which_layer_on(node, a_record, a_layer):
    off = a_record("bf16", (a_layer("0"), a_layer("1", 3.0)), digest="other")
    found = node.examine(other=machine(node, a_record, parity=(a_record("fp64"), off)))
    problem = one(found, "bf16: differs from elsewhere (Fake A100) at 1")
    assert problem.severity == ERROR
    assert "torch is 2.13.0 instead of 2.12.0" in problem.what


def test_a_parity_file_survives_the_disk(node, a_record, tmp_path):
    kept = machine(node, a_record)
    write_json(tmp_path / "p.json", kept)
    assert parity.read_file(tmp_path / "p.json", kept.model) == kept


def test_a_parity_file_of_another_model_is_refused(node, a_record, tmp_path):
    write_json(tmp_path / "p.json", machine(node, a_record))
    with pytest.raises(InputError, match="was written for m"):
        parity.read_file(tmp_path / "p.json", "other(), batch 8, seed 0")


def test_speed_stands_beside_it(node, a_record):
    fast = a_record("bf16", step_ns=(5_000_000,) * 3)
    node.change(parity=(a_record("fp64"), a_record("fp32"), fast))
    row = node.examine().parity.table[-1]
    assert row.speedup.value == pytest.approx(2)


def test_a_shape_that_changed_is_far_apart(a_record, a_layer):
    short = dataclasses.replace(a_layer("1"), samples=(1.0,), digest="short")
    assert "not comparable" in parts_at(a_record("fp32", (a_layer("0"), short)), a_record("fp32"))


FULL = {"fp64": "OutOfMemoryError: CUDA out of memory"}


def test_a_format_without_memory_on_one_rank_is_a_warning_there(node, a_record):
    node.change(2, parity=(a_record("fp32"), a_record("bf16")), parity_left_out=FULL)
    found = node.examine()
    problem = one(
        found, "fp64: parity was not checked, nor any format against it: its steps ran out of memory"
    )
    assert (problem.rank, problem.severity, found.exit_code) == (2, WARNING, 0)
    assert [row.ranks for row in found.parity.table if row.precision == "fp64"] == [(0, 1, 3)]


def test_and_said_once_where_it_is_so_everywhere(node, a_record):
    node.change(parity=(a_record("fp64"), a_record("fp32")), parity_left_out={"bf16": "out of memory"})
    found = node.examine()
    assert one(found, "bf16: parity was not checked: its steps").rank is None
    assert {row.precision for row in found.parity.table} == {"fp64", "fp32"}


def test_a_machine_without_fp32_leaves_no_parity_file(node, a_record):
    node.change(parity=(a_record("bf16"),), parity_left_out={"fp32": "out of memory", **FULL})
    assert machine_of(Evidence(checks=tuple(node.checks), hosts={}), "m()") is None
