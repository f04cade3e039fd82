"""The search on one rank, over a model whose memory is known."""

import itertools
import json

import pytest

from scaling.records.paths import RunFolder
from scaling.settings.cases import SCHEMA, Largest, Try, Variant, VariantSearch
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.accelerator.memory import Limit
from scaling.worker.cases.search import Search
from scaling.worker.session.session import Session

ROOM = 6
"""Samples."""


@pytest.fixture
def searched(training, control, a_spec, tmp_path):
    """searched(module): what rank 0 wrote down of each try."""

    def run(module, accumulation=1, overrides=()):
        folder = RunFolder(tmp_path / "run").search(0)
        folder.path.mkdir(parents=True)
        session = Session(rank=0, world=1, host=0, folder=folder, device=Cpu(), control=control)
        session.progress = lambda *_stage, **_more: None
        session.spec = a_spec("batch=max", "memory_limit=1GiB", *overrides)
        variant = Variant(precision="fp32", autocast=False, accumulation_steps=accumulation)
        largest = Largest(schema=SCHEMA, limit_bytes=None, items=(VariantSearch(variant=variant),))
        runner = training("batch=max", "memory_limit=1GiB", module=module)
        Search(session, runner, Limit(), largest).run(prove=False)
        lines = map(json.loads, folder.tries.read_text().splitlines())
        return [(line["batch"], line["status"]) for line in lines if line["status"] != "trying"]

    return run


def too_many(samples):
    return MemoryError() if samples > ROOM else None


@pytest.mark.slow
def test_a_model_that_cannot_train_on_one_sample_is_searched_from_two_on(searched, picky):
    assert searched(picky(too_many)) == [
        (1, "failed"),
        (2, "fits"),
        (4, "fits"),
        (8, "oom"),
        (6, "fits"),
        (7, "oom"),
    ]


@pytest.mark.slow
def test_with_accumulation_these_are_of_a_micro_step(searched, picky):
    tries = searched(picky(too_many), accumulation=2)
    assert tries[:2] == [(2, "failed"), (4, "fits")]
    assert max(batch for batch, status in tries if status == "fits") == 2 * ROOM


def test_a_failure_that_is_not_of_memory_ends_the_search_with_its_words(searched, picky):
    with pytest.raises(RuntimeError, match=r"^TypeError: no such kernel \(rank 0\)$"):
        searched(picky(lambda _samples: TypeError("no such kernel")))


def test_a_search_ends_with_its_time_and_says_which_batch_it_did_not_try(searched, picky, monkeypatch):
    clock = itertools.count(step=300.0)
    monkeypatch.setattr("scaling.worker.cases.search.time.monotonic", lambda: next(clock))
    tries = searched(picky(lambda _samples: None), overrides=["measure=standard"])
    assert tries[-1][1] == "late"
    tried = tuple(Try(batch=batch, status=status) for batch, status in tries)
    fitted = VariantSearch(variant=Variant(precision="fp32", autocast=False), tries=tried)
    assert fitted.next is None
    assert fitted.late
    assert fitted.candidate == tries[-2][0]


def test_and_so_does_one_at_a_batch(searched, picky):
    odd = picky(lambda samples: TypeError("not eight") if samples == 8 else None)
    with pytest.raises(RuntimeError, match="batch 8: TypeError: not eight"):
        searched(odd)
