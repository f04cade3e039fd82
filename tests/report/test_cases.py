"""Inference, tables of training settings and the largest batch, as they are read."""

import dataclasses

import pytest
from support.reports import comparison_page, page, print_analysis, print_comparison, printed
from support.results import HOSTILE, about, bare, compared_case, inference, run_info

from scaling.analysis.results import (
    Comparison,
    LargestBatch,
    Latency,
    TrainingCase,
    TrialStatus,
)
from scaling.report.cases import largest_line
from scaling.report.tracking import tables
from scaling.report.tracking import tables as charts
from scaling.settings.cases import Try


def served(**changes):
    """A run of inference on GPUs."""
    return run_info(
        model="rtdetr", topology="local", task="inference", backend="nccl", device="cuda", **changes
    )


def inferred(batch, rate, **changes):
    found = {
        "latency_ms": Latency(p50=about(2000 * batch / rate, 0.1), p90=about(2100 * batch / rate, 0.2)),
        "samples_per_s": about(rate, rate / 50),
        "peak_bytes": 300 * 2**20 + batch * 2**20,
    }
    return inference(batch, **found | changes)


def training(batch, rate, **changes):
    settings = {"world_size": 2, "precision": "bf16", "accumulation_steps": 1, "checkpointing": False}
    found = {"status": "done", "step_ms": about(2000 * batch / rate, 1), "samples_per_s": about(rate, 3)}
    return TrainingCase(
        batch=batch, exposed_ms=about(12, 0.5), peak_bytes=2**30, **(settings | found | changes)
    )


LARGEST = LargestBatch(
    precision="bf16",
    autocast=True,
    compile=False,
    checkpointing=False,
    accumulation_steps=1,
    limit_bytes=2 * 2**30,
    found=100,
    proved=98,
    step=3,
    tries=(Try(batch=100, status="fits", peak_bytes=2**30), Try(batch=103, status="oom", rank=1)),
)


def analysis(**changes):
    done = (TrialStatus(world_size=2, status="done"),)
    return bare(served(device_name="Imaginary G1"), trials=done, **changes)


SERVED = analysis(
    inference=(
        inferred(1, 100),
        inferred(8, 390, knee=True),
        inferred(32, 400),
        inferred(8, 700, precision="bf16", autocast=True),
        inferred(
            64, 1, status="oom", samples_per_s=None, latency_ms=Latency(), peak_bytes=None, error=HOSTILE
        ),
    )
)
TRAINED = analysis(
    training=(
        training(16, 900),
        training(16, 700, checkpointing=True),
        training(16, 650, accumulation_steps=2),
    ),
    largest_batch=(LARGEST,),
)


def test_the_terminal_marks_the_knee_and_says_what_was_not_measured(sample):
    text = printed(print_analysis, SERVED, sample.plan())
    assert " 8*" in text
    words = " ".join(text.split())
    assert "fp32, eager, batch 64: out of memory" in words
    assert "700 a second, in bf16, eager, autocast at batch 8" in words.replace(" ±14", "")


def test_a_batch_that_is_too_small_to_train_with_is_not_called_too_large():
    tries = (Try(batch=1, status="failed"), *LARGEST.tries)
    assert largest_line(dataclasses.replace(LARGEST, tries=tries)) == largest_line(LARGEST)


def test_the_terminal_tells_training_settings_and_the_largest_batch(sample):
    words = " ".join(printed(print_analysis, TRAINED, sample.plan()).split())
    assert "100 per rank and step fit in 2 GiB, 103 does not; 98 proved in fresh processes" in words
    assert "micro-steps" in words


def test_the_answer_of_cases_says_where_ranks_are_slower_than_one(sample):
    """Half of the ideal and more is faster than one rank alone, less is slower."""
    rows = [
        training(batch, rate, world_size=n, efficiency=None if n == 1 else about(rate / (100 * n), 0.01))
        for batch, n, rate in ((4, 1, 100), (4, 2, 60), (16, 1, 100), (16, 2, 180))
    ]
    words = " ".join(printed(print_analysis, analysis(training=tuple(rows)), sample.plan()).split())
    assert "2 ranks are slower than 1 with batch 4: 0.60 ±0.02 times its samples a second." in words
    assert "efficiency" in words
    assert "micro-steps batch" not in words
    assert "slower than 1" not in printed(print_analysis, TRAINED, sample.plan())


@pytest.mark.parametrize("found", [SERVED, TRAINED], ids=["inference", "training"])
def test_the_page_has_the_tables_and_nothing_breaks_out(found, sample):
    text = page(found, sample.plan(), ())
    assert HOSTILE not in text
    assert "Imaginary G1" in text
    assert ("Throughput" in text) == (found is SERVED)  # one batch draws no curve
    assert "Key figures" not in text


def test_two_devices_are_compared_case_by_case():
    case = compared_case(about(2, 0.05), samples_per_s=(about(700, 10), about(1400, 20)))
    comparison = Comparison(
        schema=1,
        base=SERVED.run,
        other=served(device_name="Imaginary G2"),
        comparable=True,
        reasons=(),
        points=(),
        cases=(case,),
    )
    words = " ".join(printed(print_comparison, comparison).split())
    assert "Imaginary G2 gives 2.00 times the samples a second of Imaginary G1 in 1 case" in words
    assert "bf16, autocast" in comparison_page(comparison, SERVED, SERVED)


def test_wandb_gets_a_table_of_device_precision_and_batch():
    found = tables.tables(SERVED)["inference"]
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    assert rows[1]["device"] == "Imaginary G1"
    assert (rows[1]["precision"], rows[1]["batch"], rows[1]["samples_per_s"]) == ("fp32", 8, 390)
    assert rows[1]["latency_p50_ms"] == pytest.approx(2000 * 8 / 390)
    chart = charts.charts(SERVED)["throughput_chart"]
    assert chart["series"]["fp32, eager n=2"] == [(1, 100), (8, 390), (32, 400)]
    assert tables.tables(TRAINED)["largest_batch"]["rows"]
