"""Images in one folder a class."""

import pytest
import torch

from scaling.errors import InputError
from scaling.worker.data.folder import Images

Image = pytest.importorskip("PIL.Image", reason="Pillow is not there (scaling-harness[images])")


@pytest.fixture
def pictures(tmp_path):
    for label, colour in (("cats", (255, 0, 0)), ("dogs", (0, 0, 255))):
        (tmp_path / label).mkdir()
        Image.new("RGB", (40, 30), colour).save(tmp_path / label / "one.png")
    Image.new("L", (9, 9), 128).save(tmp_path / "dogs" / "grey.JPG", format="JPEG")
    (tmp_path / "dogs" / "notes.txt").write_text("not a picture")
    return tmp_path


def test_samples_are_scaled_crops_with_their_folder_s_place(pictures):
    images = Images(str(pictures), image=8)
    samples = [images[i] for i in range(len(images))]
    assert [label for _, label in samples] == [0, 1, 1]
    assert all(x.shape == (3, 8, 8) and x.dtype == torch.float32 for x, _ in samples)
    red = samples[0][0]
    assert torch.allclose(red[0], torch.tensor((1 - 0.45) / 0.225))
    assert torch.allclose(red[2], torch.tensor(-0.45 / 0.225))


def test_each_time_another_crop(pictures):
    stripes = Image.new("L", (64, 64))
    stripes.putdata([column * 4 for _ in range(64) for column in range(64)])
    stripes.save(pictures / "cats" / "one.png")
    images = Images(str(pictures), image=8)
    assert not torch.equal(images[0][0], images[0][0])


def test_no_folder(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        Images(str(tmp_path / "none"), image=8)


def test_no_images(tmp_path):
    with pytest.raises(InputError, match="holds no images"):
        Images(str(tmp_path), image=8)
