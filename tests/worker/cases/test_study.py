"""What is told while cases are measured, by a runner that has nothing to do."""

from types import SimpleNamespace

import pytest

from scaling.records.format import SCHEMA, ClockRecord, HeadRecord, PlainRow
from scaling.records.paths import RunFolder
from scaling.settings.plan import make_plan
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.accelerator.memory import Limit
from scaling.worker.cases.runner import CHANGE_S, Study
from scaling.worker.session.progress import COMPILE_S

ROUNDS = 3


class Idle:
    fewest = (1,)
    least = 1

    def nothing(self, *_arguments):
        pass

    open = bare = settle = use = alone = together = drop = close = nothing

    def run(self, _arm, steps, _lead_in):
        return [PlainRow(now_ns(), now_ns()) for _ in range(steps)]


@pytest.fixture
def told(control, a_spec, tmp_path):
    """told(*overrides): every word as (stage, rounds, expected s)."""

    def study(*overrides):
        words = []
        folder = RunFolder(tmp_path / "run").launch(0)
        folder.path.mkdir(parents=True)
        spec = a_spec("measure=quick", f"measure.rounds_max={ROUNDS}", *overrides)
        session = SimpleNamespace(
            spec=spec,
            plan=make_plan(spec, run_id="run", created="", version=""),
            control=control,
            device=Cpu(),
            rank=0,
            world=1,
            folder=folder,
            trials=(SimpleNamespace(world_size=1),),
            lead=True,
            launch_head=lambda **_: HeadRecord(schema=SCHEMA, rank=0, host=0),
            compare_clocks=lambda at: ClockRecord(at=at, offset_ns=0, bound_ns=0, time_ns=now_ns()),
            record_memory=lambda: None,
            clocks_due=False,
            timed=lambda _key, _step_s: None,
            untimed=lambda: None,
        )
        session.progress = lambda stage, rounds=0.0, _elapsed_s=0.0, _left_s=None, expected_s=None: (
            words.append((stage, rounds, expected_s))
        )
        Study(session, Idle(), Limit(), None).run()
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
