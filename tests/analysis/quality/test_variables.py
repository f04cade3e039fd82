"""Variables that make the streams of a GPU wait for each other are warned of."""

from scaling.analysis.quality.memory import variable_warnings

ONE_QUEUE = {"device": "cuda", "env.CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def test_one_hardware_queue_is_said_and_on_which_ranks():
    (said,) = variable_warnings({0: ONE_QUEUE, 1: ONE_QUEUE})
    assert said.startswith("CUDA_DEVICE_MAX_CONNECTIONS=1: all streams share one hardware queue")
    (said,) = variable_warnings({0: {"device": "cuda"}, 1: ONE_QUEUE})
    assert said.startswith("CUDA_DEVICE_MAX_CONNECTIONS=1 on rank 1: ")


def test_launches_that_block_are_said():
    (said,) = variable_warnings({0: {"device": "cuda", "env.CUDA_LAUNCH_BLOCKING": "1"}})
    assert "nothing overlaps" in said


def test_more_queues_and_other_devices_are_fine():
    assert variable_warnings({0: ONE_QUEUE | {"env.CUDA_DEVICE_MAX_CONNECTIONS": "8"}}) == ()
    assert variable_warnings({0: ONE_QUEUE | {"device": "cpu"}, 1: {}}) == ()
    assert variable_warnings({}) == ()
