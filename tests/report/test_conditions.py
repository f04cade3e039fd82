from scaling.report.conditions import conditions


def test_conditions_say_what_is_not_real(sample):
    shown = dict(conditions(sample.bad().run, sample.bad_plan()))
    assert "SYNTHETIC compute" in shown["model"]
    assert "scaled down" in shown["note"]
    assert shown["link"] == "200 Mbit/s a host (shaped)"
    assert shown["INJECTED"] == "inject.rank=1, inject.compute_ms=33"
    assert "INJECTED" not in dict(conditions(sample.good().run, sample.plan()))
