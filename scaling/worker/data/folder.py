"""Images in one folder per class, decoded and augmented in data workers as in image training."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset

from scaling.errors import InputError
from scaling.reading import without_tilde

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
SCALE = (0.08, 1.0)
"""Share of the image's area that a crop takes: C. Szegedy et al., "Going Deeper with Convolutions", section 6."""
MEAN, DEVIATION = 0.45, 0.225
"""Approximate mean and standard deviation of natural images in [0, 1], the same for each channel."""


class Images(Dataset[tuple[torch.Tensor, int]]):
    """`path/<class>/<name>.jpg` as (3, image, image) fp32 tensors with the class's place in alphabetical order."""

    def __init__(self, path: str, image: int) -> None:
        """InputError when there are no images, or Pillow is not installed."""
        root = without_tilde(path, f"data.path={path}")
        if not root.is_dir():
            raise InputError(
                f"data.path={path}: no such folder; a folder with one folder of images for each class is expected"
            )
        try:
            import PIL.Image  # noqa: F401, PLC0415  # an extra that only image folders need
        except ImportError as error:
            raise InputError(
                "data=folder: needs Pillow to decode images; pip install 'scaling-harness[images]'"
            ) from error
        classes = sorted(p for p in root.iterdir() if p.is_dir())
        self._images = [
            (file, label)
            for label, folder in enumerate(classes)
            for file in sorted(folder.rglob("*"))
            if file.suffix.lower() in SUFFIXES
        ]
        if not self._images:
            raise InputError(
                f"data.path={path}: holds no images; PATH/<class>/<name> with one of {', '.join(SUFFIXES)} is expected"
            )
        self._side = image

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """One image, with a new random crop and flip each time."""
        from PIL import Image  # noqa: PLC0415

        path, label = self._images[index]
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        crop = _crop(*image.size)
        image = image.resize((self._side, self._side), Image.Resampling.BILINEAR, box=crop)
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        planes = pixels.view(self._side, self._side, 3).permute(2, 0, 1)
        return planes.float().div_(255).sub_(MEAN).div_(DEVIATION), label


def _crop(width: int, height: int) -> tuple[float, float, float, float]:
    """Left, upper, right and lower edge of a random crop with the image's proportions."""
    share = float(torch.empty(()).uniform_(*SCALE)) ** 0.5
    left, upper = (float(torch.rand(())) * side * (1 - share) for side in (width, height))
    return left, upper, left + width * share, upper + height * share
