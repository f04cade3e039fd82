"""What is said on stderr while a launch runs."""

import pytest

from scaling.report.progress import watching


@pytest.mark.parametrize(
    ("moved", "state"),
    [(True, "the ranks work"), (False, "the ranks are idle"), (None, "nothing is seen of the ranks")],
)
def test_a_silence_says_when_it_will_be_ended(sample, capsys, monkeypatch, moved, state):
    monkeypatch.setattr("scaling.report.progress.TimeLeft.due", lambda _self: True)
    with watching(sample.plan()) as report:
        report({"stage": "end", "silent_s": 5.5, "patience_s": 49.0, "moved": moved})
    said = capsys.readouterr().err.splitlines()[-1]
    assert (
        said == f"scaling: end: nothing finished for 5.5 s, {state}; it is ended after 49 s without progress"
    )


def test_what_a_rank_says_is_printed_as_it_is(sample, capsys):
    with watching(sample.plan()) as report:
        report({"said": "no entry a:key:b in [red]"})
    assert "scaling: no entry a:key:b in [red]\n" in capsys.readouterr().err
