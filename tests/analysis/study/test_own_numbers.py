"""Tables of GPUs and throughput as people write them down."""

import json

import pytest
from support.commands import refused

from scaling.analysis.study.own_numbers import concluded, read_numbers, to_measure
from scaling.cli.main import main


def test_a_table_in_a_file_with_the_step_at_which_it_breaks(tmp_path, capsys):
    path = tmp_path / "numbers.csv"
    path.write_text("gpus,samples_per_s\n1,400\n2,790\n4,1580\n8,1790\n")
    assert main(["study", str(path)]) == 0
    said = capsys.readouterr().out
    assert (
        "breaks from 4 to 8 GPUs: 2 times the GPUs give 1.13 times the throughput (57% a GPU is kept)" in said
    )
    assert "scaling launch --no-probe --world-sizes 1,4,8 train.py" in said
    assert main(["study", str(path), "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [p["efficiency"] for p in points] == pytest.approx([1.0, 0.9875, 0.9875, 1790 / 3200])


@pytest.mark.parametrize(
    "text",
    [
        "1,100\n8,640\n",
        "gpus;img/s\n1;100\n8;640",
        "# mine\nGPUs\timages/s\n8\t640\n1\t100\n",
        "| GPUs | throughput |\n|---|---|\n| 1 | 100 |\n| 8 | 640 |\n",
        "gpus samples_per_s_per_gpu\n1 100\n8 80",
        "GPUs | step time (ms)\n---|---\n1 | 100\n8 | 125\n",
        "throughput,gpus\n100,1\n640,8\n",
        "gpus,samples_per_s\n1,90\n1,110\n8,640\n",
        "GPUs;Durchsatz (Bilder/s)\n1;100,0\n8;640,0\n",
        '"GPUs";"tokens/s"\n"1";"1.000,5"\n"8";"6.403,2"\n',
        'gpus,tokens/s\n1,"1,000"\n8,"6,400"\n',
        "GPUs,throughput\n1,100 img/s\n8,640 img/s\n",
        "GPUs,tok/s\n1x,10k\n8x,64k\n",
        "nodes,gpus_per_node,seconds per epoch\n1,1,640\n4,2,100\n",
    ],
)
def test_layouts(text):
    numbers, _ = read_numbers(text, "x.csv")
    assert [n.world_size for n in numbers] == [1, 8]
    assert numbers[1].efficiency == pytest.approx(0.8)
    assert to_measure(numbers) == (1, 8)


def test_doubts_are_said():
    numbers, _ = read_numbers("2,100\n4,101\n", "x.csv")
    said = " ".join(concluded(numbers))
    assert "name the column so" in said
    assert "nothing was measured on one GPU" in said
    numbers, _ = read_numbers("1,100\n4,480\n", "x.csv")
    assert "not the same training" in " ".join(concluded(numbers))


@pytest.mark.parametrize(
    "text", ["", "gpus,rate\n", "1,100\n", "1,100\ntwo,3\n", "1,0\n2,3\n", "1.5,2\n2,4\n"]
)
def test_other_tables_are_refused(tmp_path, capsys, text):
    path = tmp_path / "n.csv"
    path.write_text(text)
    assert "two columns are expected" in refused(capsys, ["study", str(path)])


def test_a_decimal_comma_is_part_of_its_number():
    numbers, _ = read_numbers("GPUs;samples/s\n1;120,5\n2;1.204,25\n4;2 408,5\n", "x.csv")
    assert [n.throughput for n in numbers] == [120.5, 1204.25, 2408.5]


@pytest.mark.parametrize("text", ["gpus,samples/s\n1,120,5\n2,236,4\n", "gpus,step\n1,100 ms\n2,1 s\n"])
def test_a_number_of_two_cells_and_a_column_of_two_units_are_refused(tmp_path, capsys, text):
    path = tmp_path / "numbers.csv"
    path.write_text(text)
    assert "expected" in refused(capsys, ["study", str(path)])


STEP_TIMES = (
    "ms/step",
    "s/it",
    "time_per_step",
    "ms_per_step",
    "sec/iter",
    "s / step",
    "us/step",
    "min/step",
)
RATES = (
    "samples/s",
    "it/s",
    "tokens_per_s",
    "imgs/sec",
    "steps per sec",
    "items/second",
    "throughput (items / s)",
)
RATES_EACH = ("samples / s / gpu", "tok / sec / gpu", "Tokens / Second / Device")


@pytest.mark.parametrize("name", STEP_TIMES)
def test_time_a_step_is_no_rate(name):
    numbers, assumed = read_numbers(f"gpus,{name}\n1,100\n8,125\n", "x.csv")
    assert numbers[1].efficiency == pytest.approx(0.8)
    assert "weak scaling" in assumed[0]


@pytest.mark.parametrize("name", RATES)
def test_what_is_done_in_a_second_is_a_rate(name):
    numbers, _ = read_numbers(f"gpus,{name}\n1,100\n8,640\n", "x.csv")
    assert numbers[1].efficiency == pytest.approx(0.8)


@pytest.mark.parametrize("name", RATES_EACH)
def test_a_rate_of_each_gpu_is_no_time(name):
    numbers, _ = read_numbers(f"gpus,{name}\n1,100\n8,80\n", "x.csv")
    assert numbers[1].efficiency == pytest.approx(0.8)
