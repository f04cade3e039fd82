"""Every figure of known records is what it was, to twelve digits; on one kind of processor, to the last.

A figure that should change, or a key that should go: `python tests/golden/regenerate.py` prints what moves and writes
the documents anew.
"""

import pytest
from golden import cases

SHOWN = 20


@pytest.mark.parametrize("name", cases.CASES)
def test_the_analysis_is_what_it_was(name, tmp_path):
    try:
        path = cases.CASES[name](tmp_path)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    lines = cases.differences(cases.expected(name), cases.document(path), rounding=cases.ROUNDING)
    assert not lines, "\n".join(
        [f"{len(lines)} values differ (python tests/golden/regenerate.py {name}):", *lines[:SHOWN]]
    )


def test_a_digit_a_key_and_a_type_are_told_with_their_path():
    was = {"points": [{"step_ms": 1.0, "late": None}], "fits": {}}
    now = {"points": [{"step_ms": 1.0000000000000002, "late": 0}], "new": 1}
    assert cases.differences(was, now) == [
        ".fits: gone",
        ".new: new",
        ".points[0].step_ms: 1.0 -> 1.0000000000000002",
        ".points[0].late: null -> 0",
    ]
    assert cases.differences(was, was) == []
    assert ".points[0].step_ms: 1.0 -> 1.0000000000000002" not in cases.differences(was, now, rounding=1e-12)
    assert cases.differences([1.0], [1.00000000001], rounding=1e-12) == ["[0]: 1.0 -> 1.00000000001"]
    assert cases.differences([1], [1.0]) == ["[0]: 1 -> 1.0"]


def test_every_expected_document_has_a_case():
    files = {file.name.removesuffix(".json.xz") for file in (cases.HERE / "expected").iterdir()}
    assert files == set(cases.CASES)


@pytest.mark.parametrize("name", ["run_hsdp", "run_tp", "run_ddp_fsdp"])
def test_a_run_whose_last_rank_file_was_cut_off_is_analysed(name, tmp_path):
    path = cases.CASES[name](tmp_path)
    last = max(path.glob("launches/*/rank-*.jsonl"))
    last.write_bytes(last.read_bytes()[: int(0.6 * last.stat().st_size)])
    document = cases.document(path)
    assert document["points"]
    assert "cut off" in str(document["quality"]["warnings"])
