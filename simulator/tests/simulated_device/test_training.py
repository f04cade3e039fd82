"""What people train with, on the device: values and gradients are the CPU's."""

import copy

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

from simulated_device import ranks

pytestmark = pytest.mark.slow
N, C = 4, 5
LABELS = torch.tensor([0, 1, 2, 3])

LOSSES = {
    "mse": functional.mse_loss,
    "mse, summed": lambda x, t: functional.mse_loss(x, t, reduction="sum"),
    "mse, each": lambda x, t: functional.mse_loss(x, t, reduction="none").mean(),
    "l1": functional.l1_loss,
    "smooth l1": functional.smooth_l1_loss,
    "huber": functional.huber_loss,
    "soft labels": lambda x, t: functional.cross_entropy(x, t.softmax(-1)),
    "binary": lambda x, t: functional.binary_cross_entropy(x.sigmoid(), t.sigmoid()),
    "binary, logits": lambda x, t: functional.binary_cross_entropy_with_logits(x, t.sigmoid()),
    "divergence": lambda x, t: functional.kl_div(x.log_softmax(-1), t.softmax(-1), reduction="batchmean"),
    "soft margin": lambda x, t: functional.soft_margin_loss(x, t.sign()),
    "triplet": lambda x, t: functional.triplet_margin_loss(x, t, t.flip(0)),
    "gaussian": lambda x, t: functional.gaussian_nll_loss(x, t, torch.ones_like(t)),
    "poisson": functional.poisson_nll_loss,
    "labels": lambda x, t: functional.cross_entropy(x, LABELS.to(t.device)),
    "labels, smoothed": lambda x, t: functional.cross_entropy(x, LABELS.to(t.device), label_smoothing=0.1),
    "labels, one ignored": lambda x, t: functional.cross_entropy(x, LABELS.to(t.device), ignore_index=1),
    "margins": lambda x, t: functional.multi_margin_loss(x, LABELS.to(t.device)),
}

OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd, fused": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "sgd, foreach": lambda p: optim.SGD(p, lr=0.1, foreach=True),
    "adam": optim.Adam,
    "adam, amsgrad": lambda p: optim.Adam(p, amsgrad=True),
    "adamw": optim.AdamW,
    "adamw, fused": lambda p: optim.AdamW(p, fused=True),
    "adamw, foreach": lambda p: optim.AdamW(p, foreach=True),
    "adagrad": optim.Adagrad,
    "adadelta": optim.Adadelta,
    "adamax": optim.Adamax,
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
    "rmsprop": optim.RMSprop,
    "rprop": optim.Rprop,
    "adafactor": optim.Adafactor,
}

IMAGES, WORDS = (2, 4, 6, 6), (2, 5, 4)
LAYERS = {
    "group norm": (lambda: nn.GroupNorm(2, 4), IMAGES),
    "instance norm": (lambda: nn.InstanceNorm2d(4), IMAGES),
    "rms norm": (lambda: nn.RMSNorm(4), WORDS),
    "batch norm": (lambda: nn.BatchNorm2d(4), IMAGES),
    "frozen, then batch norm": (lambda: nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3)), IMAGES),
    "average pool": (lambda: nn.AvgPool2d(2), IMAGES),
    "max pool": (lambda: nn.AdaptiveMaxPool2d(2), IMAGES),
    "bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), IMAGES),
    "transposed": (lambda: nn.ConvTranspose2d(4, 2, 3), IMAGES),
    "gelu": (nn.GELU, WORDS),
    "silu": (nn.SiLU, WORDS),
    "prelu": (nn.PReLU, WORDS),
    "glu": (nn.GLU, WORDS),
    "lstm": (lambda: nn.LSTM(4, 6, 2, batch_first=True), WORDS),
    "lstm, no bias": (lambda: nn.LSTM(4, 6, bias=False, batch_first=True), WORDS),
    "gru": (lambda: nn.GRU(4, 6, 2, batch_first=True), WORDS),
    "rnn": (lambda: nn.RNN(4, 6, batch_first=True), WORDS),
    "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), WORDS),
}


def apart(a, b):
    """The largest difference, relative to the largest value."""
    return float((a.detach() - b.detach().cpu()).abs().max() / a.detach().abs().max().clamp(min=1e-6))


def losses(rank, world):
    found = {}
    for name, loss in LOSSES.items():
        torch.manual_seed(1)
        x, target = torch.randn(N, C, requires_grad=True), torch.randn(N, C)
        there = x.detach().to("sim").requires_grad_()
        one, other = loss(x, target), loss(there, target.to("sim"))
        one.backward()
        other.backward()
        found[name] = max(apart(one, other), apart(x.grad, there.grad))
    return found


def layers(rank, world):
    found = {}
    for name, (make, shape) in LAYERS.items():
        torch.manual_seed(1)
        here = make()
        there = copy.deepcopy(here).to("sim")
        x = torch.randn(*shape)
        gradients = []
        for module, data in ((here, x), (there, x.to("sim"))):
            data.requires_grad_("frozen" not in name)  # the layer before it needs no gradient
            out = module(data)
            (out[0] if isinstance(out, tuple) else out).pow(2).mean().backward()
            gradients.append([p.grad for p in module.parameters()] + [data.grad] * data.requires_grad)
        found[name] = max(apart(a, b) for a, b in zip(*gradients, strict=True))
    return found


def network():
    torch.manual_seed(0)
    body = (
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    )
    return nn.Sequential(*body, nn.Linear(16, C))


def trained(device, make, *, dtype=None, scaled=False, clip=False, frozen=False, micro=1):
    """Parameters after three steps."""
    net = network().to(device)
    net[0].requires_grad_(not frozen)
    optimizer = make([p for p in net.parameters() if p.requires_grad])
    scaler = torch.amp.GradScaler(device, enabled=scaled)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    data = torch.Generator().manual_seed(2)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(micro):
            images, wanted = torch.randn(N, 3, 8, 8, generator=data), torch.randn(N, C, generator=data)
            with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
                answer = net(images.to(device))
            scaler.scale(functional.mse_loss(answer.float(), wanted.to(device)) / micro).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    return [p.detach().cpu() for p in net.parameters()]


def optimizers(rank, world):
    return {
        name: max(map(apart, trained("cpu", make), trained("sim", make))) for name, make in OPTIMIZERS.items()
    }


WAYS = {
    "clipped": {"clip": True},
    "frozen": {"frozen": True},
    "accumulated": {"micro": 3, "clip": True},
    "bf16": {"dtype": torch.bfloat16},
    "bf16, accumulated": {"dtype": torch.bfloat16, "micro": 2, "clip": True},
    "scaled": {"scaled": True},
    "scaled, clipped": {"scaled": True, "clip": True},
}


def ways(rank, world):
    return {
        name: max(map(apart, trained("cpu", optim.AdamW, **way), trained("sim", optim.AdamW, **way)))
        for name, way in WAYS.items()
    }


def half(rank, world):
    """fp16 with the scaler has no counterpart on the CPU's autocast: it trains, and skips no step for good."""
    found = trained("sim", optim.AdamW, dtype=torch.float16, scaled=True, clip=True)
    before = [p.detach() for p in network().parameters()]
    return all(bool(p.isfinite().all()) for p in found) and any(map(apart, before, found))


@pytest.mark.parametrize(("what", "most"), [(losses, 1e-5), (layers, 1e-4), (optimizers, 1e-4), (ways, 2e-2)])
def test_values_and_gradients_are_the_cpus(what, most):
    (found,) = ranks.run(what, 1)
    assert {name: off for name, off in found.items() if not off <= most} == {}


def test_half_precision_trains_under_the_scaler():
    assert ranks.run(half, 1) == [True]
