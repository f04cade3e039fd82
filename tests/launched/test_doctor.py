"""`scaling doctor` with real ranks on this machine: what is wrong on one rank is found, and a clean one is clean."""

import json

import pytest

LOCAL = ("topology=local", "topology.device=cpu", "topology.ranks_per_host=2", "threads=1")
MODEL = ("model=custom", "model._target_=mine.factory", "batch_per_rank=64")

MINE = """
import os
import torch
from scaling import Workload


class Odd(torch.nn.Linear):
    '''The same on every rank, but for what each test asks of rank 1.'''

    def forward(self, x):
        y = super().forward(x)
        if "layer" in os.environ["ODD"] and os.environ.get("RANK") == "1":
            y = y * 1.001
        if "item" in os.environ["ODD"]:
            y = y * (1 + 0 * y.sum().item())
        return y


def factory():
    if "flag" in os.environ["ODD"] and os.environ.get("RANK") == "1":
        torch.set_float32_matmul_precision("medium")
    module = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), Odd(1024, 1024), torch.nn.Linear(1024, 8))
    return Workload(
        module=module,
        make_batch=lambda n, g: (torch.randn(n, 512, generator=g), torch.randint(8, (n,), generator=g)),
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    )
"""


@pytest.fixture
def doctor(scaling, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)

    def call(odd, *more):
        monkeypatch.setenv("ODD", odd)
        done = scaling("doctor", *LOCAL, *MODEL, "--json", *more, cwd=tmp_path)
        assert done.stdout, done.stderr
        return done, json.loads(done.stdout)

    return call


def said(document, word):
    return [p for p in document["problems"] if word in p["what"]]


@pytest.mark.alone
@pytest.mark.slow
def test_equal_ranks_agree_to_the_last_bit_and_the_next_machine_is_compared(doctor, tmp_path):
    done, document = doctor("", "--parity", "parity.json")
    assert done.returncode == 0, document["problems"]
    table = document["parity"]["table"]
    assert {row["precision"] for row in table} >= {"fp64", "fp32", "bf16"}
    assert all(row["ranks"] == [0, 1] and row["repeatable"] for row in table)
    assert document["roofline"]["bound"] == "compute"
    assert 0.1 < document["roofline"]["mfu"]["value"] < 1.2
    assert (tmp_path / "parity.json").exists()
    assert list((tmp_path / "runs").rglob("telemetry-0.jsonl"))

    done, document = doctor("layer", "--parity", "parity.json")
    assert done.returncode == 1
    (problem,) = said(document, "fp32: rank")
    assert "differs from rank 0 at 2 (1.0e-03 apart)" in problem["what"]
    assert {row["device"].split(":")[0] for row in document["parity"]["table"] if not row["ranks"]}


@pytest.mark.slow
def test_another_flag_on_one_rank_and_an_item_in_the_step(doctor):
    done, document = doctor("flag item")
    assert done.returncode == 1
    (problem,) = said(document, "flags.float32_matmul_precision differs")
    assert problem["severity"] == "error"
    if said(document, "fp32: rank 1 differs"):  # a processor without bf16 products has nothing to part with
        assert any("float32_matmul_precision" in p["what"] for p in said(document, "fp32: rank 1 differs"))

    (problem,) = said(document, "read back to the host")
    assert "mine.py:15" in problem["what"]
    assert "in 2" in problem["what"]
