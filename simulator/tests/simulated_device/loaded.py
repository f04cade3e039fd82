"""What the process that ranks are forked from loads first: torch with the device, and no thread of theirs."""

import torch.distributed.fsdp
import torch.distributed.tensor.parallel
import torch.nn.parallel

from scaling_simulator import load

torch.set_num_threads(1)
load()
