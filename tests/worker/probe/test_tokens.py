"""What a loop may tell of its tokens: whole numbers that are on the host."""

import numpy as np
import pytest
import torch

from scaling.worker.probe.recording import as_count


@pytest.mark.parametrize("given", [512, np.int64(512), torch.tensor(512), torch.tensor([512])])
def test_whole_numbers_on_the_host(given):
    assert as_count(given) == 512


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.empty((), dtype=torch.int64, device="meta"), "is on meta, and the host would wait for it"),
        (2.5, "a whole number is expected, not float"),
        (torch.tensor([1, 2]), "a whole number is expected, not Tensor"),
        (None, "a whole number is expected, not NoneType"),
        (-1, "a number from 0 to 2^48 is expected, not -1"),
        (2**62, "a number from 0 to 2^48 is expected"),
    ],
)
def test_anything_else_is_refused_with_the_reason(given, said):
    with pytest.raises(ValueError, match=r"expected|wait for it") as error:
        as_count(given)
    assert said in str(error.value)
