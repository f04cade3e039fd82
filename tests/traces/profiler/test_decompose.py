"""Where one rank's time went: hand-made traces with known answers."""

import pytest

from scaling.traces.profiler import signs
from scaling.traces.profiler.decompose import decompose
from scaling.traces.profiler.read import read_trace


@pytest.fixture
def parts(trace, tmp_path):
    """parts(fill): the decomposition of a trace that `fill` adds to; us."""

    def made(fill, **meta):
        begun = trace(**meta)
        fill(begun)
        return decompose(read_trace(begun.write(tmp_path / "trace.json")))

    return made


def us(found, name):
    return [v / 1e3 for v in found.columns[name]]


def test_each_instant_is_counted_once(parts):
    def fill(t):
        t.step(1, 0, 200)
        t.kernel("gemm", 10, 30, launched=0)  # 10-40
        t.kernel("gemm", 30, 20, launched=1, stream=8)  # 30-50, both at once for 10
        t.all_reduce(45, 25, launched=2)  # 45-70: 5 hidden, 20 exposed
        # 60-80: 10 under communication, 10 its own
        t.kernel("Memcpy HtoD", 60, 20, launched=3, cat="gpu_memcpy")
        t.kernel("gemm", 100, 10, launched=90)  # the gap 80-100: 10 not launched, 10 launched and waiting

    found = parts(fill)
    assert us(found, "window") == [100]
    assert us(found, "compute") == [50]
    assert us(found, "exposed") == [20]
    assert us(found, "hidden") == [5]
    assert us(found, "copies") == [10]
    assert us(found, "host") == [10]
    assert us(found, "launch") == [10]
    assert us(found, "idle") == [0]


def test_steps_begin_on_the_device_and_share_its_time_out(parts):
    def fill(t):
        for k in range(3):
            t.step(k, 100 * k, 99)
            # begins late, ends in the next step's time
            t.kernel("gemm", 100 * k + 50, 80, launched=100 * k + 1)

    found = parts(fill)
    assert found.labels == ("ProfilerStep#0", "ProfilerStep#1")  # nothing ends the last one's wait for data
    assert us(found, "window") == [100, 100]
    assert us(found, "compute") == [80, 80]


def test_every_step_has_the_wait_for_its_next_batch(parts):
    """Three steps of 50 us of data and 100 of compute: a third of each is input."""

    def fill(t):
        for k in range(3):
            t.step(k, 150 * k, 149)
            loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            t.add("user_annotation", loader, 150 * k, 50)
            t.kernel("gemm", 150 * k + 50, 100, launched=150 * k + 50)

    found = parts(fill)
    assert us(found, "window") == [150, 150]
    assert us(found, "input") == [50, 50]


def test_fractions_of_a_microsecond_are_kept(parts):
    found = parts(lambda t: t.kernel("gemm", 1000000.125, 0.75).kernel("gemm", 1000001.25, 0.5))
    assert us(found, "window") == [1.625]
    assert us(found, "compute") == [1.25]


def test_phases_are_told_by_what_launched_a_kernel(parts):
    def fill(t):
        t.step(1, 0, 100)
        t.add("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 20, 10, tid=2)
        t.add("user_annotation", "Optimizer.step#SGD.step", 40, 10)
        t.kernel("gemm", 10, 5, launched=1)
        t.kernel("gemm", 30, 7, launched=21, tid=2)
        t.kernel("gemm", 50, 9, launched=41)
        t.kernel("gemm", 60, 1, launched=25, tid=1)  # beside backward, not in it

    found = parts(fill)
    assert (us(found, "forward"), us(found, "backward"), us(found, "optimizer")) == ([6], [7], [9])


def test_without_operators_of_the_host_phases_are_not_known(parts):
    found = parts(lambda t: t.step(1, 0, 100).kernel("gemm", 10, 5, launched=1))
    assert us(found, "compute") == [5]
    assert not {"forward", "backward", "optimizer"} & set(found.columns)


def test_a_gap_in_which_the_host_waits_for_data_is_input(parts):
    def fill(t):
        t.step(1, 0, 100)
        t.add("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20, 30)
        t.kernel("gemm", 0, 10, launched=0)
        t.kernel("gemm", 70, 10, launched=60)

    found = parts(fill)
    assert us(found, "input") == [30]
    assert us(found, "host") == [20]
    assert us(found, "launch") == [10]


def test_kernels_beside_communication_are_held_against_the_same_alone(parts):
    def fill(t):
        t.kernel("gemm", 0, 10, grid=[4, 1, 1]).kernel("gemm", 10, 10, grid=[4, 1, 1])
        t.kernel("gemm", 20, 99, grid=[8, 1, 1])  # another shape is another kernel
        t.all_reduce(200, 50)
        t.kernel("gemm", 210, 15, grid=[4, 1, 1])

    (found,) = parts(fill).stretched.values()
    assert found == (2, 20_000, 1, 15_000)


def test_communication_is_recognised_by_more_than_one_sign(parts):
    def fill(t):
        t.step(1, 0, 1000)
        t.add("user_annotation", "nccl:all_gather", 5, 10, **{"Input Dims": [[256]], "Input type": ["float"]})
        t.kernel("a_new_kernel_nobody_knows", 20, 10, launched=8, stream=20)
        t.kernel("brand_new_transport", 40, 10, launched=30, stream=20)  # by its stream alone
        t.kernel(
            "myFancyKernel", 60, 10, launched=50, **{"Collective name": "reduce_scatter", "dtype": "Half"}
        )
        # torch's own computes, wherever it runs
        t.kernel("void at::native::copy", 80, 10, launched=9, stream=20)
        t.kernel("gemm", 100, 10, launched=90)

    found = parts(fill)
    assert us(found, "exposed") == [30]
    assert us(found, "compute") == [20]
    assert found.guessed == {"a_new_kernel_nobody_knows": 1, "brand_new_transport": 1}
    assert found.unknown == {"brand_new_transport": 1}
    names = [s.collective for s in found.collectives.sent]
    assert names == ["all_gather", signs.UNKNOWN, "reduce_scatter"]
    assert found.collectives.sent[0].bytes == 1024


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs)",
        "rccl_main_kernel",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void flashinfer::trtllm_allreduce::allreduce_fusion_kernel_oneshot",
        "multimem_all_reduce_kernel",
    ],
)
def test_names_of_communication(name):
    assert signs.kernel_kind(name) == signs.COMMUNICATION


@pytest.mark.parametrize(
    "name", ["void at::native::reduce_kernel<512, 1>", "volta_sgemm_128x32_nt", "fused_add_1"]
)
def test_names_of_compute(name):
    assert signs.kernel_kind(name) == signs.COMPUTE


def test_impossible_times_are_left_out_and_counted(trace, tmp_path):
    made = (
        trace()
        .kernel("gemm", 100, 10)
        .kernel("gemm", 120, -5)
        .kernel("gemm", 130, 4e15)
        .kernel("gemm", 9e17, 5)
    )
    found = read_trace(made.write(tmp_path / "trace.json"))
    assert found.absurd == 3
    assert us(decompose(found), "window") == [10]


def test_what_an_event_says_in_types_that_no_trace_has_leaves_it_out(trace, tmp_path):
    made = trace().kernel("gemm", 100, 10).kernel("gemm", 120, 10, grid="large").kernel("gemm", 140, 10)
    made.add("cpu_op", "aten::mm", 100, 50, stream=["of an operator, it is never asked for"])
    found = read_trace(made.write(tmp_path / "trace.json"))
    assert (found.odd, found.events, found.gpu.begin.tolist()) == (1, 3, [0, 40_000])
    assert len(found.host.begin) == 1


def test_without_a_device_the_hosts_operators_count(parts):
    def fill(t):
        t.step(1, 0, 100).step(2, 100, 100)
        t.add("cpu_op", "aten::mm", 10, 30)
        t.add("cpu_op", "aten::add", 30, 20, tid=2)
        t.add("cpu_op", "autograd::engine::evaluate_function: AccumulateGrad", 60, 20)
        t.add("cpu_op", "c10d::allreduce_", 65, 10)  # handing over is neither compute nor nothing
        t.add(
            "user_annotation",
            "gloo:all_reduce",
            70,
            25,
            tid=9,
            **{"Input Dims": [[8]], "Input type": ["float"]},
        )
        t.add("cpu_op", "aten::mm", 150, 10)

    found = parts(fill, deviceProperties=[])
    assert found.device == "cpu"
    assert us(found, "window") == [100, 100]
    assert us(found, "compute")[0] == 40 + 5 + 5
    assert us(found, "exposed")[0] == 5 + 15
    assert us(found, "hidden")[0] == 5
    assert us(found, "host")[0] == 10 + 10 + 5 + 5
    assert us(found, "host")[1] == 90


def test_a_last_step_in_which_only_the_loader_ended_is_none(parts):
    """profiler.step() opens the next one at once, and the loop ends."""

    def fill(t):
        for k in range(3):
            t.step(k, 100 * k, 100)
            t.add("cpu_op", "aten::mm", 100 * k + 10, 30)
        t.step(3, 300, 2)
        t.add("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 300, 1)

    found = parts(fill, deviceProperties=[])
    assert found.labels == ("ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2")
    assert us(found, "window") == [100, 100, 100]


def test_waiting_in_a_functional_collective_is_no_compute(parts):
    def fill(t):
        t.step(1, 0, 100)
        t.add("cpu_op", "aten::mm", 0, 50)
        t.add("cpu_op", "_c10d_functional::wait_tensor", 60, 30)
        t.add("user_annotation", "gloo:all_reduce", 55, 35, tid=9)

    found = parts(fill, deviceProperties=[])
    assert (us(found, "compute"), us(found, "exposed")) == ([50], [35])


def test_what_enqueues_for_a_device_is_no_communication(parts):
    """Without the device's events its length is unknown."""

    def fill(t):
        t.step(1, 0, 100)
        t.add("cpu_op", "aten::mm", 0, 50)
        t.add("cpu_op", "record_param_comms", 60, 5, **{"Collective name": "allreduce"})
        t.add("user_annotation", "nccl:all_reduce", 60, 5)

    found = parts(fill, deviceProperties=[])
    assert found.collectives.sent == ()
    assert us(found, "exposed") == [0]


def test_metadata_alone_is_nothing_to_analyse(parts):
    with pytest.raises(ValueError, match="no kernel, copy or operator"):
        parts(lambda t: t.document["traceEvents"].append({"ph": "M", "name": "process_name", "ts": 1}))


def test_kernels_behind_the_last_whole_step_slow_none_of_its_kernels(parts):
    """Two whole steps of one kernel beside communication; the third has another, which no step counts."""

    def fill(t):
        for k in range(3):
            at = 100 * k
            t.step(k, at, 99)
            t.kernel("gemm", at, 10, launched=at, grid=[4, 1, 1])
            t.all_reduce(at + 20, 50, launched=at + 1)
            t.kernel("gemm", at + 30, 15, launched=at + 2, grid=[4, 1, 1])

    (found,) = parts(fill).stretched.values()
    assert found == (3, 30_000, 2, 30_000)  # the border is the begin of a kernel, which counts
