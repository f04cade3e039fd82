"""The design: which faults are put into which family of models."""

from collections import Counter

from scaling.analysis.selftest.grade import FAMILIES, FAULTS, MODEL_CASES, drawn


def of(case):
    family, fault = case.name.split(", ")
    return family, fault.removeprefix("rank 0 ").removeprefix("rank 1 ")


def test_every_fault_is_in_three_families_and_every_family_has_a_control_and_four_faults_or_more():
    cells = [of(case) for case in MODEL_CASES]
    assert len(set(cells)) == len(cells) == 36
    assert Counter(fault for _, fault in cells) == {"control": 6, **dict.fromkeys(FAULTS, 3)}
    assert min(Counter(family for family, _ in cells).values()) >= 5
    assert {family for family, _ in cells} == set(FAMILIES)


def test_either_rank_is_late_in_each_phase():
    late = {(case.rank, case.phase) for case in MODEL_CASES if case.rank is not None}
    assert len(late) == 2 * 5


def test_a_draw_has_a_control_and_different_faults_and_is_that_of_its_seed():
    cells = [of(case) for case in drawn(8, seed=3)]
    assert cells == [of(case) for case in drawn(8, seed=3)]
    assert [fault for _, fault in cells].count("control") == 1
    assert len({fault for _, fault in cells}) == 8
    assert len({tuple(case.name for case in drawn(8, seed=k)) for k in range(10)}) > 5
