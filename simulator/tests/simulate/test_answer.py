"""A worker that gives no answer is told by what it printed last, or by how it ended."""

import time

import pytest

from scaling import resources
from scaling.errors import InputError, ScalingError
from scaling.settings.estimate import TimedStep
from scaling_simulator.simulate.ask import TooLongError, answer

ASKED = TimedStep(batch=2, step_s=1.0)
PROGRAMS = {
    "echoes": "import sys; sys.stdout.write(sys.stdin.read())",
    "is_killed": "import os, sys; print('begun', file=sys.stderr); os.kill(os.getpid(), 9)",
    "says_why": "import sys; sys.stderr.buffer.write(b'\\xff odd bytes\\nno such model\\n'); sys.exit(1)",
    "refuses": "import sys; print('g++ is needed', file=sys.stderr); sys.exit(2)",
    "says_nothing": "raise SystemExit(3)",
    "waits": "import time; time.sleep(60)",
}


@pytest.fixture
def asked(tmp_path, monkeypatch):
    for name, text in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(text + "\n")
    monkeypatch.setattr(resources, "import_path", lambda: str(tmp_path))
    return lambda name, limit_s=30: answer(name, ASKED, TimedStep, what="the step", limit_s=limit_s)


def test_an_answer_is_decoded(asked):
    assert asked("echoes") == ASKED


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "is_killed",
            "the step gave no answer: it was ended by SIGKILL, as the kernel does where memory runs out",
        ),
        ("says_why", "the step gave no answer: no such model"),
        ("says_nothing", "the step gave no answer: it ended with status 3"),
    ],
)
def test_where_there_is_none_the_message_says_why(asked, name, said):
    with pytest.raises(ScalingError) as error:
        asked(name)
    assert str(error.value) == said


def test_what_the_machine_lacks_is_bad_input(asked):
    with pytest.raises(InputError, match=r"^g\+\+ is needed$"):
        asked("refuses")


def test_a_worker_that_takes_too_long_is_ended(asked):
    begin = time.monotonic()
    with pytest.raises(TooLongError):
        asked("waits", 0.5)
    assert time.monotonic() - begin < 30
