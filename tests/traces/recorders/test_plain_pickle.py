"""Pickles of plain data, and those that would do more."""

import os
import pickle
import re

import pytest

from scaling.reading import RefusedError
from scaling.traces.recorders.plain_pickle import read_pickle


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        {
            "entries": [{"a": 1, "b": [-1, 2**40, -(2**62), 0.5, None, True, False]}],
            "pg": ("0", "default_pg"),
        },
        [],
        {1: (), "x": ((1, 2), (1, 2, 3, 4, 5))},
        "é" * 300,
    ],
)
def test_plain_data_come_back(value, protocol):
    assert read_pickle(pickle.dumps(value, protocol)) == value


def test_a_frame_that_is_referred_to_again_is_read():
    frame = {"name": "forward", "line": 3}
    value = {"entries": [{"frames": [frame] * 20} for _ in range(20)]}
    assert read_pickle(pickle.dumps(value, 2)) == value


class Command:
    def __reduce__(self):
        return os.system, ("touch run",)


def _doubled(times):
    value = ()
    for _ in range(times):
        value = (value, value)
    return value


def _itself():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (pickle.dumps(Command(), 2), "builds more than plain data"),
        (pickle.dumps(Command(), 4), "builds more than plain data"),
        (pickle.dumps(Command(), 0), "no pickle of protocol 2 to 5"),
        (pickle.dumps({(1, 2): 3}, 2), "a key that is neither a string nor a whole number"),
        (pickle.dumps(_doubled(40), 2), "unfolds to more than"),
        (pickle.dumps(_itself(), 2), "nested more than 64 levels deep"),
        (pickle.dumps(10**40, 2), "an integer of more than 64 bits"),
        (pickle.dumps([1, 2, 3], 2)[:-3], "damaged near byte"),
        (b"\x80\x02]r\xff\xff\xff\xff.", None),  # a place far away in the memo takes no memory
        (b"\x80\x04\x8e" + b"\xff" * 8, "damaged near byte"),
        (b"\x80\x02((e.", "damaged near byte"),
        (b"\x80\x02N]e.", "damaged near byte"),
        (b"\x80", "damaged near byte"),
        (b"\x80\x02\xff.", "(0xff at byte 2)"),
    ],
)
def test_other_pickles_are_refused_and_nothing_is_run(data, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if why is None:
        assert read_pickle(data) == []
    else:
        with pytest.raises(RefusedError, match=re.escape(why)):
            read_pickle(data)
    assert list(tmp_path.iterdir()) == []
