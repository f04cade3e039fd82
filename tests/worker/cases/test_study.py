"""What is told while cases are measured, by a runner that has nothing to do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from scaling.store import RunFolder
from scaling.worker.cases.study import CHANGE_S, Study
from scaling.worker.clock import now_ns
from scaling.worker.devices import Device
from scaling.worker.memory import NoLimit
from scaling.worker.progress import COMPILE_S

ROUNDS = 3


class Idle:
    fewest = (1,)
    least = 1

    def nothing(self, *_arguments):
        pass

    open = bare = settle = use = alone = together = drop = close = nothing

    def run(self, _arm, steps, _lead_in):
        return [[now_ns(), now_ns()] for _ in range(steps)]


@pytest.fixture
def told(control, a_spec, tmp_path):
    """told(*overrides): every word as (stage, rounds, expected s)."""

    def study(*overrides):
        words = []
        folder = RunFolder(tmp_path / "run").launch(0)
        folder.path.mkdir(parents=True)
        launch = SimpleNamespace(
            spec=a_spec("measure=quick", f"measure.rounds_max={ROUNDS}", *overrides),
            control=control,
            device=Device(),
            rank=0,
            world=1,
            folder=folder,
            trials=(SimpleNamespace(world_size=1),),
            head=lambda: {"rank": 0, "host": 0},
            clock=lambda _at: None,
            note_memory=lambda: None,
        )
        launch.progress = lambda stage, rounds=0.0, _elapsed_s=0.0, _left_s=None, expected_s=None: (
            words.append((stage, rounds, expected_s))
        )
        Study(launch, Idle(), NoLimit(), None).run()
        return words

    return study


def test_there_is_a_word_before_every_stretch(told):
    stretches = [word for word in told("task=inference", "batch=[1,2,4]") if "round" in word[0]]
    assert [word[1] for word in stretches] == pytest.approx([k / 3 for k in range(ROUNDS * 3)])
    assert all(word[2] >= CHANGE_S for word in stretches)


def test_a_case_that_is_compiled_is_waited_for_longer(told):
    words = told("task=inference", "batch=[1]", "vary.compile=[false,true]")
    expected = {stage: expected_s for stage, _, expected_s in words}
    assert expected["warm-up of world size 1, case 1"] is None
    assert expected["warm-up of world size 1, case 2"] == COMPILE_S
    assert expected["warm-up of world size 1, case 2, steps"] is None
