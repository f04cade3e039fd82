from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import NO_NAMESPACES, user_namespaces, wait_until

from scaling.records.encoding import digest_of

SCRIPT = Path(__file__).parents[2] / "launch" / "emulated_hosts.py"
UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
PAYLOAD_SHARE = 1448 / 1514
MBIT = 10**6
LOW, HIGH = 0.89, 1.03
"""Right shares of the payload rate; above 1 where a busy machine let the receiver start late."""

STREAM = """
import json, socket, sys, threading, time

def congestion(sock):
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode()

def send(address, count):
    for _ in range(200):
        try:
            sock = socket.create_connection((address, 7000))
            break
        except OSError:
            time.sleep(0.02)
    block = bytes(65536)
    while count > 0:
        sock.sendall(block)
        count -= len(block)
    print(json.dumps({"sender": congestion(sock)}), flush=True)

def receive(server):
    sock, _ = server.accept()
    total, told_s = 0, 0.0
    while chunk := sock.recv(1 << 18):
        total += len(chunk)
        if time.monotonic() > told_s + 0.005:
            told_s = time.monotonic()
            print(json.dumps({"at_s": told_s, "bytes": total}), flush=True)
    print(json.dumps({"at_s": time.monotonic(), "bytes": total, "receiver": congestion(sock)}), flush=True)

own, peer, sent, received = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
tasks = [threading.Thread(target=send, args=(peer, sent))] if sent else []
if received:
    tasks.append(threading.Thread(target=receive, args=(socket.create_server((own, 7000)),)))
for task in tasks:
    task.start()
for task in tasks:
    task.join()
"""

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
print("ready", flush=True)
time.sleep(600)
"""


def in_network(test: Any) -> Any:
    """Mark a test that makes network namespaces."""
    return pytest.mark.launch(pytest.mark.skipif(not user_namespaces(), reason=NO_NAMESPACES)(test))


@pytest.fixture(scope="module")
def module() -> Any:
    spec = importlib.util.spec_from_file_location("emulated_hosts", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["emulated_hosts"] = loaded
    spec.loader.exec_module(loaded)
    return loaded


class Network:
    """A network.json in a folder of its own, and the processes that were started with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "network.json"
        self.command = [*UNSHARE, sys.executable, str(SCRIPT), str(self.file)]
        self.processes: list[subprocess.Popen[str]] = []

    def write(
        self, commands: list[list[str]], rates: tuple[int | None, ...] = (), grace_s: float = 5, **more: Any
    ) -> None:
        hosts = [
            {
                "name": f"host{i}",
                "address": f"10.77.0.{i + 1}",
                "rate_bit_s": rates[i] if rates else None,
                "command": command,
                "env": {"NUMBER": str(i)},
                "log": str(self.folder / f"{i}.txt"),
            }
            for i, command in enumerate(commands)
        ]
        whole = self.folder / "new.json"
        whole.write_text(json.dumps({"hosts": hosts, "grace_s": grace_s, **more}))
        whole.replace(self.file)

    def start(self, *before: str) -> subprocess.Popen[str]:
        command = [*before, *self.command]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def run(self) -> tuple[int, list[dict[str, Any]], str]:
        process = self.start()
        out, err = process.communicate(timeout=30)
        return process.returncode, [json.loads(line) for line in out.splitlines()], err

    def log(self, number: int) -> str:
        path = self.folder / f"{number}.txt"
        return path.read_text() if path.exists() else ""

    def lines(self, number: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log(number).splitlines() if line.endswith("}")]

    def python(self, source: str, *arguments: object) -> list[str]:
        """A command whose command line names this network's folder."""
        return [sys.executable, "-c", source, *map(str, arguments), str(self.folder)]

    def streams(self, count: int, back: int = 0) -> list[list[str]]:
        """The commands of two hosts: the first sends `count` bytes to the second, which sends `back` bytes."""
        first, second = "10.77.0.1", "10.77.0.2"
        there = self.python(STREAM, first, second, count, back)
        return [there, self.python(STREAM, second, first, back, count)]

    def alive(self) -> list[int]:
        """Processes whose command line names this network's folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if str(self.folder).encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    made = Network(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


def rate_bit_s(samples: list[dict[str, Any]]) -> float:
    """Received bits a second between the first and the last sample."""
    first, last = samples[0], samples[-1]
    return float((last["bytes"] - first["bytes"]) * 8 / (last["at_s"] - first["at_s"]))


def received(network: Network, number: int, skip_bytes: int) -> float:
    """The rate at which a host received after its first `skip_bytes`, bit/s."""
    return rate_bit_s([line for line in network.lines(number) if line.get("bytes", 0) >= skip_bytes])


def test_burst_is_the_table_at_its_points(module: Any) -> None:
    table = {50e6: 32, 200e6: 64, 1e9: 128, 4e9: 256, 10e9: 512}
    assert {rate: module.burst_bytes(rate) / 1024 for rate in table} == table


def test_burst_grows_with_the_rate(module: Any) -> None:
    bursts = [module.burst_bytes(1e6 * 1.1**k) for k in range(110)]
    assert bursts == sorted(bursts)
    assert bursts[0] == module.BURST_MIN >= 10 * 1514
    assert module.burst_bytes(20e9) == 2 * module.burst_bytes(10e9)
    assert 32 * 1024 < module.burst_bytes(100e6) < 64 * 1024


@pytest.mark.parametrize("rate", [0, 3_999, 2**35, -1])
def test_a_rate_the_kernel_cannot_hold_is_refused(module: Any, rate: int) -> None:
    with pytest.raises(ValueError, match=r"host0: rate_bit_s is"):
        module.Host("host0", "10.77.0.1", rate, [], {}, "")


@in_network
@pytest.mark.parametrize("rate", [50 * MBIT, 200 * MBIT, 1000 * MBIT])
@pytest.mark.measures
def test_a_stream_gets_the_rate(network: Network, rate: int) -> None:
    count = rate // 8
    network.write(network.streams(count), (rate, rate))
    status, lines, err = network.run()
    assert (status, err) == (0, "")
    assert sorted(line["host"] for line in lines) == ["host0", "host1"]
    share = received(network, 1, count // 8) / (rate * PAYLOAD_SHARE)
    print(f"{rate / MBIT:.0f} Mbit/s: {share:.4f} of the payload rate")
    assert LOW < share < HIGH
    assert network.lines(0)[-1]["sender"] == "cubic"
    assert network.lines(1)[-1]["receiver"] == "cubic"


@in_network
@pytest.mark.measures
def test_both_directions_get_the_rate_at_once(network: Network) -> None:
    rate = 200 * MBIT
    count = rate // 8
    network.write(network.streams(count, back=count), (rate, rate))
    assert network.run()[0] == 0
    shares = [received(network, number, count // 8) / (rate * PAYLOAD_SHARE) for number in (0, 1)]
    print(f"both ways: {shares[0]:.4f} and {shares[1]:.4f} of the payload rate")
    assert all(LOW < share < HIGH for share in shares)


@in_network
@pytest.mark.measures
def test_only_what_a_host_sends_is_shaped(network: Network) -> None:
    count = 256 << 20
    network.write(network.streams(count), (None, 50 * MBIT))
    assert network.run()[0] == 0
    rate = received(network, 1, count // 8)
    print(f"unshaped: {rate / 1e9:.1f} Gbit/s")
    assert rate > 1e9


@in_network
@pytest.mark.measures
def test_ranks_of_one_host_are_not_slowed(network: Network) -> None:
    count = 256 << 20
    network.write([network.python(STREAM, "10.77.0.1", "10.77.0.1", count, count)], (50 * MBIT,))
    assert network.run()[0] == 0
    assert {line["sender"] for line in network.lines(0) if "sender" in line} == {"cubic"}
    assert received(network, 0, count // 8) > 1e9


@in_network
@pytest.mark.parametrize(("old", "new"), [(200, 50), (50, 200), (500, 50), (50, None)])
@pytest.mark.measures
def test_sighup_changes_the_rate(network: Network, old: int, new: int | None) -> None:
    commands = network.streams(1 << 40)
    network.write(commands, (old * MBIT, None))
    process = network.start()
    wait_until(lambda: network.lines(1), seconds=5)
    time.sleep(0.5)
    new_bit_s = None if new is None else new * MBIT
    network.write(commands, (new_bit_s, None))
    process.send_signal(signal.SIGHUP)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"host": "host0", "rate_bit_s": new_bit_s}
    changed_s = time.monotonic()
    time.sleep(0.9)
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 128 + signal.SIGTERM
    samples = network.lines(1)
    before = rate_bit_s([s for s in samples if samples[0]["at_s"] + 0.1 < s["at_s"] < changed_s - 0.05])
    # 0.3 s: what a busy receiver had not yet read comes at the old rate.
    after = rate_bit_s([s for s in samples if changed_s + 0.3 < s["at_s"] < changed_s + 0.85])
    print(f"{old} -> {new}: {before / MBIT:.1f}, {after / MBIT:.1f} Mbit/s")
    assert LOW < before / (old * MBIT * PAYLOAD_SHARE) < HIGH
    if new is None:
        assert after > 1e9
    else:
        assert LOW < after / (new * MBIT * PAYLOAD_SHARE) < HIGH


@in_network
def test_a_broken_file_changes_no_rate(network: Network) -> None:
    network.write([network.python("import time; print('ready', flush=True); time.sleep(600)")], (50 * MBIT,))
    process = network.start()
    wait_until(lambda: "ready" in network.log(0), seconds=5)
    network.file.write_text('{"hosts": [')
    process.send_signal(signal.SIGHUP)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("emulated_hosts: rates not changed: JSONDecodeError")
    assert process.poll() is None


@in_network
def test_commands_get_their_environment_and_log(network: Network) -> None:
    network.write([["sh", "-c", "echo out $NUMBER $PATH; echo err >&2"]] * 3)
    status, lines, _ = network.run()
    assert status == 0
    assert sorted(line["host"] for line in lines) == ["host0", "host1", "host2"]
    assert network.log(2) == f"out 2 {os.environ['PATH']}\nerr\n"


@in_network
def test_what_others_put_in_the_place_of_its_files_is_not_followed(network: Network) -> None:
    network.write([["true"]])
    network.command.append(digest_of(json.loads(network.file.read_text())))
    assert network.run()[0] == 0
    network.write([["touch", str(network.folder / "ran")]])
    status, _, err = network.run()
    assert (status, err.count("\n")) == (os.EX_UNAVAILABLE, 1)
    assert "was replaced after the launch began" in err
    network.command.pop()
    (network.folder / "0.txt").unlink()
    (network.folder / "0.txt").symlink_to(network.folder / "diary")
    (network.folder / "diary").write_text("mine")
    assert network.run()[0] == os.EX_UNAVAILABLE
    assert (network.folder / "diary").read_text() == "mine"
    assert not (network.folder / "ran").exists()


@in_network
def test_a_failure_ends_the_others_after_the_grace(network: Network) -> None:
    network.write(
        [["sh", "-c", "sleep 0.2; exit 3"], ["sleep", "600"], ["sh", "-c", "sleep 0.4"]], grace_s=0.8
    )
    start_s = time.monotonic()
    status, lines, _ = network.run()
    assert time.monotonic() - start_s < 60  # not the 600 s of the host that goes on
    assert status == 3
    assert [tuple(line.values()) for line in lines] == [("host0", 3), ("host2", 0), ("host1", 143)]


@in_network
@pytest.mark.alone
def test_a_failure_ends_those_who_will_not(network: Network) -> None:
    network.write([["sh", "-c", "sleep 0.3; kill -9 $$"], network.python(STUBBORN)], grace_s=0.2)
    start_s = time.monotonic()
    status, lines, _ = network.run()
    assert 3.4 < time.monotonic() - start_s < 5.5
    assert status == 128 + signal.SIGKILL
    assert [tuple(line.values()) for line in lines] == [("host0", 137), ("host1", 137)]
    assert network.alive() == []


@in_network
def test_what_a_command_leaves_running_ends_with_it(network: Network) -> None:
    network.write(
        [
            network.python(
                STUBBORN.replace(
                    "time.sleep(600)", "os._exit(0) if os.getsid(0) == os.getpid() else time.sleep(600)"
                )
            )
        ]
    )
    assert network.run()[0] == 0
    assert network.alive() == []


def started(network: Network, *before: str) -> subprocess.Popen[str]:
    """Two hosts with processes that ignore SIGTERM, one of each in a session of its own."""
    network.write([network.python(STUBBORN)] * 2)
    process = network.start(*before)
    wait_until(lambda: all(network.log(number).count("ready") == 2 for number in (0, 1)), seconds=10)
    assert len(network.alive()) >= 6
    return process


@in_network
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything(network: Network, number: signal.Signals) -> None:
    network.write([network.python("import time; print('ready', flush=True); time.sleep(600)")] * 2)
    process = network.start()
    wait_until(lambda: all("ready" in network.log(host) for host in (0, 1)), seconds=10)
    process.send_signal(number)
    assert process.wait(1.5) == 128 + number
    assert network.alive() == []


@in_network
def test_a_signal_ends_programs_that_ignore_it(network: Network) -> None:
    process = started(network)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)  # again: no reason to wait longer, or less
    assert wait_until(lambda: process.poll() is not None, seconds=4.5) > 2
    assert process.returncode == 128 + signal.SIGTERM
    assert network.alive() == []


@in_network
def test_nothing_outlives_the_script(network: Network) -> None:
    process = started(network)
    process.kill()
    wait_until(lambda: network.alive() == [], seconds=3)


@in_network
def test_nothing_outlives_the_first_process(network: Network) -> None:
    process = started(network)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    wait_until(lambda: not network.alive(), seconds=3)
    assert process.wait(1) == 128 + signal.SIGKILL


@in_network
def test_nothing_outlives_the_caller(network: Network) -> None:
    caller = started(network, sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])")
    caller.kill()
    wait_until(lambda: network.alive() == [], seconds=3)


@in_network
def test_a_caller_that_died_early_is_noticed(network: Network) -> None:
    network.write([["sleep", "600"]], caller_pid=1)
    assert network.run()[0] == 128 + signal.SIGKILL
    network.write([["true"]], caller_pid=os.getpid())
    assert network.run()[0] == 0


@in_network
def test_the_machine_stays_as_it_is(network: Network) -> None:
    def machine() -> tuple[object, ...]:
        return socket.if_nameindex(), Path("/proc/self/mountinfo").read_text()

    before = machine()
    process = started(network)
    assert machine() == before
    process.kill()
    wait_until(lambda: not network.alive(), seconds=3)
    assert machine() == before


@in_network
def test_a_command_that_is_not_there(network: Network) -> None:
    network.write([["sleep", "600"], ["/no/such/program"]])
    status, lines, err = network.run()
    assert (status, lines) == (os.EX_UNAVAILABLE, [])
    assert err.count("\n") == 1
    assert "host1 (No such file or directory)" in err


@in_network
def test_without_privileges_one_line_says_the_remedy(network: Network) -> None:
    network.write([["true"]])
    network.command[:5] = ["unshare", "--user"]  # not mapped to root: no capabilities
    status, lines, err = network.run()
    assert (status, lines) == (os.EX_UNAVAILABLE, [])
    assert err.count("\n") == 1
    assert " ".join(UNSHARE) in err


@pytest.mark.launch
def test_without_pyroute2_one_line_says_the_remedy(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    network.write([["true"]])
    (network.folder / "pyroute2.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(network.folder))
    network.command[:5] = []
    status, lines, err = network.run()
    assert (status, lines) == (os.EX_UNAVAILABLE, [])
    assert err == "emulated_hosts: pyroute2 is missing; install it: pip install pyroute2\n"
