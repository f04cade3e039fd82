"""A rank that keeps something every step is named; one that breathes is not."""

import random

import polars as pl

from scaling.analysis.quality.memory import growth, warnings
from scaling.analysis.results import Measured

STEPS, LEAD_IN, BLOCKS = 8, 2, 40


def tables(held, kind="host"):
    rows = [(0, 1, b, held(b), None) if kind == "host" else (0, 1, b, 10**9, held(b)) for b in range(BLOCKS)]
    memory = pl.DataFrame(
        rows, schema=["launch", "rank", "block", "host_bytes", "device_bytes"], orient="row"
    )
    blocks = pl.DataFrame(
        [(0, 1, b, "plain", b * 10**9, LEAD_IN, STEPS) for b in range(BLOCKS)],
        schema=["launch", "rank", "block", "arm", "begin_ns", "lead_in", "steps"],
        orient="row",
    )
    return memory, blocks


def test_a_leak_is_named_with_its_size_a_step():
    rng = random.Random(0)
    (found,) = growth(*tables(lambda b: 10**9 + b * 10 * 2**20 + rng.randrange(2**21)))
    assert found.leak
    assert abs(found.growth_bytes_per_step.value / 2**20 - 1) < 0.05
    assert found.growth_bytes_per_step.low <= 2**20 <= found.growth_bytes_per_step.high
    assert warnings((found,))[0].startswith("leak: rank 1's host memory grows by 1")


def test_a_leak_on_the_device():
    host, device = growth(*tables(lambda b: 10**9 + b * 10 * 2**20, kind="device"))
    assert (host.kind, host.leak) == ("host", False)
    assert (device.kind, device.leak) == ("device", True)


def test_memory_that_breathes_is_no_leak():
    rng = random.Random(1)
    (found,) = growth(*tables(lambda b: 10**9 + rng.randrange(2**26)))
    assert not found.leak
    assert warnings((found,)) == ()


def test_caches_that_fill_up_at_the_start_are_none_either():
    (found,) = growth(*tables(lambda b: 10**9 + min(b, 10) * 2**24))
    assert not found.leak


def test_memory_that_stands_still_while_blocks_without_training_come_between():
    memory, blocks = tables(lambda b: 10**9)
    exchanges = pl.col("block") % 3 > 0
    blocks = blocks.with_columns(
        arm=pl.when(exchanges).then(pl.lit("replay")).otherwise(pl.lit("plain")).alias("arm")
    )
    (found,) = growth(*repeated(memory, blocks))
    assert found.growth_bytes_per_step == Measured(0.0, 0.0, 0.0, found.growth_bytes_per_step.n)


def repeated(memory, blocks):
    """Twice as long, so that enough rows are left."""
    later = pl.col("block") + BLOCKS
    return (
        pl.concat([memory, memory.with_columns(later)]),
        pl.concat([blocks, blocks.with_columns(later, pl.col("begin_ns") + BLOCKS * 10**9)]),
    )


def test_a_run_without_notes_has_no_rows():
    memory, blocks = tables(lambda b: 10**9)
    assert growth(memory.clear(), blocks) == ()
    assert growth(memory.head(5), blocks) == ()
