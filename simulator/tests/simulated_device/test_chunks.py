"""Shards that are made as needed are torch's own."""

import pytest
import torch
from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty

from scaling_simulator.chunks import Chunks


@pytest.mark.parametrize("shape", [(12, 3), (7, 3), (5,), (1, 4), (0, 4)])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("dim", [0, -1])
def test_each_chunk_is_what_torch_cuts(shape, count, dim):
    tensor = torch.arange(float(torch.Size(shape).numel())).view(shape)
    theirs, ours = _chunk_with_empty(tensor, count, dim), Chunks(tensor, count, dim)
    assert len(ours) == len(theirs) == count
    for index, one in enumerate(theirs):
        assert ours[index].shape == one.shape
        assert torch.equal(ours[index], one)
    with pytest.raises(IndexError):
        ours[count]
