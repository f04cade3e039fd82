"""How a step ended that a rank tried alone, and with how few samples a model is set up."""

from __future__ import annotations

import pytest

from scaling.cases import Case, Variant

PLAIN = Variant(precision="fp32", autocast=False)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (MemoryError(), "oom", "MemoryError"),
        (AssertionError(), "failed", "AssertionError"),
        (ValueError("one line\nand another"), "failed", "ValueError: one line"),
    ],
)
def test_whatever_a_step_raises_is_its_result(jury, error, status, said):
    def step():
        raise error

    judged = jury.judge("step", 1, step)
    assert (judged.status, judged.error, judged.rank) == (status, said, 0)


def test_a_model_that_cannot_train_on_one_sample_is_set_up_with_two(jury, training, picky):
    runner = training("batch=[4,8]", module=picky())
    assert jury.bare("bare", 1, runner).status == "fits"
    assert runner.least == 2
    runner.open(1)
    case = Case(variant=PLAIN, batch=4)
    runner.settle(case)
    runner.use(case)
    runner.alone()
    runner.together()
    runner.close()


def test_one_that_takes_no_fewer_than_were_asked_for_gets_those(jury, training, picky):
    runner = training("batch=[8,4]", module=picky(lambda n: ValueError("too few") if n < 4 else None))
    assert jury.bare("bare", 1, runner).status == "fits"
    assert runner.least == 4


def test_one_that_fails_whatever_it_gets_is_not_called_out_of_memory(jury, training, picky):
    judged = jury.bare("bare", 1, training("batch=[4]", module=picky(lambda n: TypeError(f"not {n}"))))
    assert (judged.status, judged.error) == ("failed", "TypeError: not 4")


def test_memory_that_runs_out_at_one_sample_is_not_tried_with_more(jury, training, picky):
    runner = training("batch=[4]", module=picky(lambda _n: MemoryError()))
    assert jury.bare("bare", 1, runner).status == "oom"
    assert runner.least == 1
