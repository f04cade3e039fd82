"""A Lightning Trainer that validates and saves: what is between its steps is what the report counts."""

import time

import pytest
import torch

from scaling.cli.pipeline import rebuild
from scaling.records.paths import RunFolder

lightning = pytest.importorskip("lightning.pytorch", reason="needs lightning")

pytestmark = pytest.mark.slow

STEPS, EVERY, SLOW_S = 45, 15, 0.1


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, _index):
        return self(batch[0]).square().mean()

    def validation_step(self, batch, _index):
        time.sleep(SLOW_S)
        self(batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Checkpoint(lightning.callbacks.ModelCheckpoint):
    """Takes SLOW_S more to save, outside of torch.save."""

    def _save_checkpoint(self, trainer, filepath):
        time.sleep(SLOW_S)
        super()._save_checkpoint(trainer, filepath)


@pytest.mark.parametrize("accumulated", [1, 2])  # by two, a validation comes within a step
def test_validations_and_saves_of_a_trainer_are_pauses_of_their_own(tmp_path, accumulated):
    from scaling.integrations.lightning import ScalingCallback  # needs lightning

    rows = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.ones(accumulated * (STEPS + 1), 8)), batch_size=1
    )
    one = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(1, 8)))
    saves = Checkpoint(tmp_path / "kept", every_n_train_steps=EVERY, save_top_k=-1)
    lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        accumulate_grad_batches=accumulated,
        val_check_interval=accumulated * EVERY - accumulated // 2,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        callbacks=[ScalingCallback(run_dir=tmp_path / "run"), saves],
    ).fit(Module(), rows, one)
    (point,) = rebuild(RunFolder(tmp_path / "run")).analysis.points
    pauses = {pause.kind: pause for pause in point.pauses}
    assert {kind: pause.count for kind, pause in pauses.items()} == dict.fromkeys(
        ("evaluation", "save"), STEPS // EVERY
    )
    assert pauses["evaluation"].seconds.value >= SLOW_S * (STEPS // EVERY)
