"""A Trainer that evaluates and saves: what its callback tells is what the report counts."""

import pickle
import time

import pytest
import torch

from scaling.cli.pipeline import rebuild
from scaling.records.paths import RunFolder

transformers = pytest.importorskip("transformers", reason="needs transformers")
pytest.importorskip("accelerate", reason="a Trainer needs accelerate")

pytestmark = pytest.mark.slow

STEPS, EVERY, SLOW_S = 45, 15, 0.1


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x, labels=None):  # a Trainer evaluates where there are labels
        loss = self.layer(x).square().mean()
        return {"loss": loss, "logits": loss.detach()[None]}


class SlowTrainer(transformers.Trainer):
    """Takes SLOW_S more to save, outside of torch.save."""

    def _save(self, *given, **named):
        time.sleep(SLOW_S)
        super()._save(*given, **named)


def test_evaluations_and_saves_of_a_trainer_are_pauses_of_their_own(tmp_path):
    from scaling.integrations.huggingface import ScalingCallback  # needs transformers

    arguments = transformers.TrainingArguments(
        str(tmp_path / "kept"),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        eval_strategy="steps",
        eval_steps=EVERY,
        save_steps=EVERY,
        label_names=["labels"],
    )
    rows = [{"x": torch.ones(8), "labels": torch.ones(1)}] * 64
    callback = ScalingCallback(run_dir=tmp_path / "run")
    SlowTrainer(Model(), arguments, train_dataset=rows, eval_dataset=rows, callbacks=[callback]).train()
    (point,) = rebuild(RunFolder(tmp_path / "run")).analysis.points
    kinds = {pause.kind: pause for pause in point.pauses}
    assert set(kinds) == {"evaluation", "save"}
    assert kinds["save"].count == kinds["evaluation"].count == STEPS // EVERY
    assert kinds["save"].seconds.value >= SLOW_S * STEPS // EVERY


class Stops(transformers.TrainerCallback):
    """Ends a training within its last step, once."""

    stopped = False

    def on_substep_end(self, arguments, state, control, **_more):
        if state.global_step == STEPS - 1 and not self.stopped:
            self.stopped = control.should_training_stop = True


def test_a_training_after_one_that_ended_within_a_step_is_recorded(tmp_path):
    from scaling.integrations.huggingface import ScalingCallback

    arguments = transformers.TrainingArguments(
        str(tmp_path / "kept"),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
    )
    rows = [{"x": torch.ones(8), "labels": torch.ones(1)}] * 4 * STEPS
    callback = ScalingCallback(run_dir=tmp_path / "run")
    trainer = transformers.Trainer(Model(), arguments, train_dataset=rows, callbacks=[callback, Stops()])
    trainer.train()
    trainer.train()
    rebuilt = rebuild(RunFolder(tmp_path / "run"))
    assert {launch.index for launch in RunFolder(tmp_path / "run").launches()} == {0, 1}
    assert rebuilt.analysis.points[0].step_ms.n == 2 * 4


def test_a_pickled_callback_records_nothing():
    from scaling.integrations.huggingface import ScalingCallback

    assert type(pickle.loads(pickle.dumps(ScalingCallback()))) is transformers.TrainerCallback


class Memory(torch.nn.Module):
    """Has too little memory for one step, which a Trainer then does again with a smaller batch."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(8, 1), 0

    def forward(self, x, labels=None):
        self.calls += 1
        if self.calls == STEPS:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return {"loss": self.layer(x).square().mean()}


def test_a_step_that_raised_is_left_out_and_the_trainings_steps_are_recorded(tmp_path):
    from scaling.integrations.huggingface import ScalingCallback

    arguments = transformers.TrainingArguments(
        str(tmp_path / "kept"),
        max_steps=2 * STEPS,
        per_device_train_batch_size=4,
        auto_find_batch_size=True,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
    )
    callback = ScalingCallback(run_dir=tmp_path / "run")
    rows = [{"x": torch.ones(8), "labels": torch.ones(1)}] * 64
    model = Memory()
    transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[callback]).train()
    assert model.calls == 3 * STEPS
    (point,) = rebuild(RunFolder(tmp_path / "run")).analysis.points
    assert point.step_ms.n > model.calls / 10 - 3  # ten steps a stretch, and warm-up; the first 44 give four
