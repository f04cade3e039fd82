"""How a step ended that a rank tried alone, and with how few samples a model is set up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from scaling.cases import Case, Variant, variants
from scaling.store import RunFolder
from scaling.worker.devices import Device
from scaling.worker.launch import Launch

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


class Counted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(4, 4), 0

    def forward(self, inputs):
        self.calls += 1
        return self.layer(inputs)


@pytest.fixture
def calls(training):
    """calls(runner's overrides): how often a block is computed in a step without a wrapper, and in one of each case."""

    def counted(*overrides):
        blocks = torch.nn.ModuleList([Counted(), Counted()])
        module = torch.nn.Sequential(*blocks)
        runner = training(*overrides, module=module)

        def during(step):
            blocks[0].calls = 0
            step()
            return blocks[0].calls

        found = [during(lambda: runner.bare(1))]
        runner.open(1)
        for variant in (*variants(runner._spec), *variants(runner._spec)):
            runner.use(Case(variant=variant, batch=4))
            found.append(during(runner.together))
            runner.drop()
        runner.close()
        return found

    return counted


def test_checkpointing_that_is_set_is_in_every_step(calls):
    assert calls("batch=[4]", "checkpointing=true") == [2, 2, 2]


def test_and_where_it_varies_in_those_cases_alone(calls):
    assert calls("checkpointing=true", "vary.checkpointing=[false,true]") == [1, 1, 2, 1, 2]


def test_a_launch_by_cases_leaves_checkpointing_to_them(a_spec, tmp_path):
    def recomputed(*overrides):
        folder = RunFolder(tmp_path / overrides[0]).launch(0)
        folder.path.mkdir(parents=True)
        launch = SimpleNamespace(
            spec=a_spec("model=resnet50", "threads=2", *overrides), folder=folder, rank=0, host=0
        )
        launch.device, launch.progress = Device(), lambda _word: None
        module = Launch.open(launch).module
        return sum("forward" in vars(block) for block in module.modules())

    assert recomputed("checkpointing=true") > 0
    assert recomputed("batch=[4]", "checkpointing=true") == 0
