"""The presets are the published models: as many parameters, none of which a training step leaves out."""

import pytest
import torch

from scaling.config.compose import requests
from scaling.worker.data.workload import build

pytest.importorskip("transformers", reason="the `models` extra is not installed")

PUBLISHED = {
    # torchvision.models: num_params of the weights
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "vit": 86_567_656,
    "vit_large": 304_326_632,
    # size of the weights that their authors keep on the Hugging Face Hub
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "llama": 1_235_814_400,
    "llama_135m": 134_515_008,
    "llama_7b": 6_738_415_616,
    "yolos_tiny": 6_488_736,
}
ROUNDED = {
    # the papers: YOLOS (Fang et al. 2021), RT-DETR (Zhao et al. 2024), BERT (Devlin et al. 2019, without a head);
    # counted here, in the digits of the paper
    "yolos": (30_684_768, "30.7"),
    "rtdetr": (42_891_372, "42"),
    "rtdetr_r18": (20_174_608, "20"),
    "bert": (109_514_298, "110"),
    "bert_large": (335_174_458, "340"),
}
SMALL = {
    "resnet50": ("image=32",),
    "vit": ("image=32", "layers=2"),
    "rtdetr_r18": ("image=128",),
    "yolos_tiny": ("image=32", "height=48", "layers=3"),
    "gpt2": ("layers=2", "width=64", "vocabulary=500", "heads=4", "sequence=32"),
    "bert": ("layers=2", "width=64", "vocabulary=500", "heads=4", "sequence=32"),
    "llama": ("layers=2", "width=64", "vocabulary=500", "heads=4", "key_value_heads=2", "sequence=32"),
}


LARGE = ("rtdetr_r18", "resnet50")


def preset(name, *changes):
    (request,) = requests("plan", [f"model={name}", *(f"model.{c}" for c in changes)]).items
    return build(request.spec.model.target, request.spec.model.args)


def parameters(name):
    with torch.device("meta"):  # sizes without memory
        return sum(p.numel() for p in preset(name).module.parameters())


QUICK = ("resnet50", "gpt2", "rtdetr", "llama")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PUBLISHED]
)
def test_parameters_are_as_many_as_published(name):
    assert parameters(name) == PUBLISHED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_are_as_many_as_a_paper_rounds_them_to(name):
    exact, published = ROUNDED[name]
    assert parameters(name) == exact
    assert abs(exact / 1e6 - float(published)) / float(published) < 0.025


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in SMALL]
)
def test_a_step_trains_every_parameter_and_a_forward_in_evaluation_gives_numbers(name):
    torch.manual_seed(0)
    workload = preset(name, *SMALL[name])
    module = workload.module
    inputs, targets = workload.make_batch(2, torch.Generator().manual_seed(0))
    module.eval()  # before the step: one on two samples may leave a deep network's running variances far off
    with torch.inference_mode():
        found = module(inputs)
    module.train()
    loss = workload.loss(module(inputs), targets)
    assert loss.isfinite()
    loss.backward()
    assert [n for n, p in module.named_parameters() if p.requires_grad and p.grad is None] == []
    workload.optimizer(module.parameters()).step()
    tensors = found if isinstance(found, tuple) else (found,)
    assert all(len(t) == 2 and t.isfinite().all() for t in tensors)
