"""Damaged files of other tools: read as far as that is right, or refused in a line; never a traceback."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from scaling.errors import InputError
from scaling.traces.machines.imported import import_log, import_topo, import_xml

LOG = """\
# nThread 1 nGpus 2
#  Rank  0 Group  0 Pid  1 on a device  0 [0000:1a:00] NVIDIA X
#  Rank  1 Group  0 Pid  2 on a device  1 [0000:1b:00] NVIDIA X
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
[1,0]<stdout>:     1024      256     float     sum   -1    10.00    0.10    0.10      0    10.00    0.10    0.10      0
     1048576        262144     float     sum      -1    110.0    9.53    9.53      0    110.0    9.53    9.53      0
     4194304       1048576     float     sum      -1    410.0   10.23   10.23    N/A    410.0   10.23   10.23  0e+00
# Avg bus bandwidth    : 6.62
"""
MATRIX = """\
        GPU0    GPU1    GPU2    mlx5_0  CPU Affinity    NUMA Affinity
GPU0     X      NV2     SYS     NODE    0-11,24-35      0
GPU1    NV2      X      SYS     PIX     0-11,24-35      0
GPU2    SYS     SYS      X      SYS     12-23,36-47     1
mlx5_0  NODE    PIX     SYS      X

Legend:
  NIC0: mlx5_0
"""
XML = """\
<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:18:00.0" class="0x060400" link_speed="8 GT/s" link_width="16">
      <pci busid="0000:1b:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:1c:00.0" count="4" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:1c:00.0" class="0x038000" link_speed="16 GT/s" link_width="16"><gpu dev="1"/></pci>
      <pci busid="0000:1a:00.0" class="0x020700"><nic><net name="mlx5_0" dev="0" speed="100000"/></nic></pci>
    </pci>
  </cpu>
</system>
"""
READERS = {"nccl-tests": (import_log, LOG), "topo": (import_topo, MATRIX), "nccl-xml": (import_xml, XML)}
_WORDS = (
    """GPU0 GPU1 X NV99 SYS 0 -1 1e999 nan N/A ² ٣ é < > " ' &#0; </gpu> <gpu/> # ${env:HOME} ... float }"""
)
WORDS = st.sampled_from([*_WORDS.split(), "", " ", "\n", "\t", "\0", "\u2028", "\x1b[4m", "9" * 40])
EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 30), st.one_of(WORDS, st.text(max_size=6))),
    min_size=1,
    max_size=8,
)


def damaged(text, edits):
    for place, length, instead in edits:
        at = int(place * len(text))
        text = text[:at] + instead + text[at + length :]
    return text


def assert_read_or_refused(kind, text):
    """A topology with at least one rank comes out, or an error of one line that names the file."""
    found, refusal = None, "file.txt"
    try:
        found = READERS[kind][0](text, "file.txt", "name")
    except InputError as error:
        refusal = str(error)
    assert refusal.startswith("file.txt")
    assert "\n" not in refusal
    if found is not None and found.yaml is not None:
        topology = OmegaConf.to_container(OmegaConf.create(found.yaml), resolve=True)
        assert topology["ranks_per_host"] >= 1


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.slow
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(edits=EDITS, cut=st.one_of(st.just(1.0), st.floats(0, 1)))
def test_a_damaged_file_ends_in_a_result_or_in_one_line(kind, edits, cut):
    text = damaged(READERS[kind][1], edits)
    assert_read_or_refused(kind, text[: int(cut * len(text))])


@pytest.mark.parametrize("kind", READERS)
@settings(max_examples=100)
@given(text=st.text(max_size=300))
def test_any_text_ends_in_a_result_or_in_one_line(kind, text):
    assert_read_or_refused(kind, text)


@pytest.mark.parametrize(("kind", "ranks"), [("nccl-tests", 2), ("topo", 3), ("nccl-xml", 2)])
def test_whole_files_are_read(kind, ranks):
    reader, text = READERS[kind]
    topology = OmegaConf.create(reader(text, "file.txt", "name").yaml)
    assert (topology.name, topology.hosts, topology.ranks_per_host) == ("name", 1, ranks)
