"""A model's arguments: what has no value is what is usual on the run's kind of device."""

import pytest

from scaling.config.compose import requests
from scaling.config.model import to_data, to_model
from scaling.errors import InputError

CNN = {
    "name": "small",
    "_target_": "package.module.factory",
    "image": None,
    "channels": 48,
    "usual": {"image": [16, 32], "channels": [32, 256]},
}


def test_what_has_no_value_is_what_is_usual_there():
    assert to_model(CNN).args == {"image": 16, "channels": 48}
    assert to_model(CNN, accelerated=True).args == {"image": 32, "channels": 48}


def test_the_default_model_is_larger_on_an_accelerator():
    def args(device):
        asked = ["topology=local", f"topology.device={device}", "topology.ranks_per_host=2"]
        return requests("plan", asked).items[0].spec.model.args

    assert (args("cpu")["channels"], args("sim")["channels"]) == (32, 256)
    assert args("sim")["image"] > args("cpu")["image"]


@pytest.mark.parametrize(
    "given",
    [
        *({"args": 5}, {"usual": {"width": 5}}, {"limits": 5}, {"requires": []}),
        *({"x": float("nan")}, {"args": {"x": [10**30]}}, {"x": b"bytes"}),
    ],
)
def test_arguments_of_another_shape_or_that_no_plan_can_hold_are_refused(given):
    with pytest.raises(InputError, match="expected"):
        to_model({"_target_": "package.module.factory", **given})


@pytest.mark.parametrize(
    ("key", "value"),
    [("token", "abc"), ("url", "https://me:word@store.example/set"), ("store", {"api_key": "abc"})],
)
def test_arguments_that_hold_a_secret_are_refused_since_they_are_written(key, value):
    arguments = {"_target_": "package.module.factory", "args": {key: value}}
    for convert in (to_model, to_data):
        with pytest.raises(InputError, match="this secret would be written"):
            convert(arguments)
