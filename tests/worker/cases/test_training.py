"""How a step ended that a rank tried alone, and with how few samples a model is set up."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.gloo_ranks import run_ranks
from support.workloads import towards_zero

from scaling.records.paths import RunFolder
from scaling.settings.cases import Case, Variant, variants
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.cases import _runner
from scaling.worker.session.session import LaunchSession

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


@pytest.mark.slow
def test_a_launch_by_cases_leaves_checkpointing_to_them(a_spec, tmp_path):
    def recomputed(*overrides):
        folder = RunFolder(tmp_path / overrides[0]).launch(0)
        folder.path.mkdir(parents=True)
        launch = SimpleNamespace(
            spec=a_spec("model=resnet50", "threads=2", *overrides), folder=folder, rank=0, host=0
        )
        launch.device, launch.progress = Cpu(), lambda _stage: None
        launch.record_environment = lambda *_: None
        module = LaunchSession.open_workload(launch).module
        return sum("forward" in vars(block) for block in module.modules())

    assert recomputed("checkpointing=true") > 0
    assert recomputed("batch=[4]", "checkpointing=true") == 0


class Formats(torch.nn.Module):
    """What memory format its batches come in: whether it is channels-last."""

    def __init__(self):
        super().__init__()
        self.layer, self.found = torch.nn.Conv2d(3, 2, 3), set()

    def forward(self, images):
        self.found.add(images.is_contiguous(memory_format=torch.channels_last))
        return self.layer(images).mean()


@pytest.mark.parametrize("task", ["train", "inference"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_batches_come_in_the_memory_format_that_is_set(task, channels_last, a_spec, groups):
    spec = a_spec(f"task={task}", "batch=[2]", f"channels_last={str(channels_last).lower()}")
    workload = towards_zero(
        Formats(),
        make_batch=lambda n, g: (torch.randn(n, 3, 8, 8, generator=g), None),
        loss=lambda outputs, _targets: outputs,
    )
    launch = SimpleNamespace(spec=spec, device=Cpu(), rank=0, groups=groups)
    runner = _runner(launch, workload)
    runner.open(1)
    runner.use(Case(variant=PLAIN, batch=2))
    runner.together()
    runner.close()
    assert workload.module.found == {channels_last}


@pytest.mark.slow
def test_after_one_rank_ran_out_of_memory_a_common_step_of_a_model_with_buffers_ends(tmp_path):
    found = run_ranks(Path(__file__).with_name("buffer_ranks.py"), 2, tmp_path / "store")
    assert [rank["fits"] for rank in found] == [[True] * 8, [False, True] * 4]
    assert max(max(rank["took_ns"]) for rank in found) < 10e9  # the groups' timeout is twice that
