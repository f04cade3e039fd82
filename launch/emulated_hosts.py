"""Hosts on one machine, joined by links of a given rate; one command runs in each.

    unshare --user --map-root-user --net --mount python emulated_hosts.py network.json [DIGEST]

DIGEST: the begin of the SHA-256 of the file's content with sorted keys; another content is then not followed, since
others may have put it there. network.json:

    {"hosts": [{"name": "host0", "address": "10.77.0.1", "rate_bit_s": 200000000, "command": ["torchrun"],
                "env": {"GLOO_SOCKET_IFNAME": "eth0"}, "log": "torchrun-0.txt"}, ...],
     "grace_s": 5, "caller_pid": 4711}

A host is a network namespace whose `eth0` (MTU 1500, 10.77.0.0/16) is connected to one bridge. `rate_bit_s` shapes
what the host sends (null: unshaped), so links are full duplex. The machine's interfaces and mounts do not change.

Prints `{"host": "host0", "status": 1}` as each command ends (128 + n: killed by signal n), `{"signal": 15}` when it is
told to end them, and exits with the first status that is not 0. When a command fails, the others get `grace_s` seconds
to end by themselves, then SIGTERM, and 3 s later SIGKILL; SIGTERM and SIGINT to this process do the same at once.
SIGHUP reads the file again, applies changed rates and prints `{"host": "host0", "rate_bit_s": 50000000}` for each.
Where the network or a process cannot be made, one line on stderr says why and the status is 69.

The commands end with this process, and this process ends with its caller, however either ends. The commands run in a
PID namespace (so their process numbers differ from the machine's). Its first process dies with this one, and the
kernel then ends the rest. "Caller" is the *thread* that started this process. `caller_pid` (optional) covers a caller
that dies while Python is still starting.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    pyroute2: Any = importlib.import_module("pyroute2")
except ImportError:
    print("emulated_hosts: pyroute2 is missing; install it: pip install pyroute2", file=sys.stderr)
    sys.exit(os.EX_UNAVAILABLE)

COMMAND = "unshare --user --map-root-user --net --mount python emulated_hosts.py network.json"
SUBNET, PREFIX_LENGTH = "10.77.0.0", 16
KILL_AFTER_S = 3.0
QUEUE_BYTES = 4 << 20
"""Size of a host's queue. TCP keeps far less in it, so nothing is dropped."""
RATE_MIN_BIT_S, RATE_END_BIT_S = 4_000, 8 * 2**32
"""The kernel's plain rate field is 32 bits of bytes/s, and so is the time that a burst takes, in ticks of 64 ns."""
BURSTS = ((50e6, 32 << 10), (200e6, 64 << 10), (1e9, 128 << 10), (4e9, 256 << 10), (10e9, 512 << 10))
"""Rate (bit/s) and burst (bytes), found with Gloo's all-reduce of 16 MiB on two hosts and two cores: within
6 % of 1448/1514 of the rate (10 Gbit/s: bound by the CPU). Smaller bursts split packets and lose rate."""
PACKET_MAX = 72 << 10
"""Smallest burst when a rate changes. Packets already in the queue are up to 64 KiB plus the headers of 46 frames, and
a packet larger than the bucket would block the link for good. (Replacing the bucket would drop the queue, which stalls
TCP for up to 0.1 s; deleting the old one first would let megabytes pass unshaped.)"""
GSO_MAX, GSO_MIN = 64 << 10, 8 << 10
"""Largest packet that TCP hands down: the kernel's default, and the smallest limit set here, bytes."""
BURST_MIN = 16 << 10
"""Ten full frames, which is TCP's first window."""

CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000  # linux/sched.h
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 1 << 14, 1 << 18  # linux/mount.h
PR_SET_PDEATHSIG = 1  # linux/prctl.h
TC_H_ROOT = 0xFFFFFFFF  # linux/pkt_sched.h
TABLE_MAIN, TABLE_LOCAL = 254, 255  # linux/rtnetlink.h

SIGNALS = {signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
LIBC = ctypes.CDLL(None, use_errno=True)


class UnavailableError(Exception):
    """Something cannot be made on this machine; the message says what, why and the remedy."""


@dataclass(frozen=True)
class Host:
    """One entry of `hosts` in network.json."""

    name: str
    address: str
    rate_bit_s: int | None
    command: list[str]
    env: dict[str, str]
    log: str

    def __post_init__(self) -> None:
        if self.rate_bit_s is not None and not RATE_MIN_BIT_S <= self.rate_bit_s < RATE_END_BIT_S:
            raise ValueError(
                f"{self.name}: rate_bit_s is {self.rate_bit_s}, not {RATE_MIN_BIT_S} to {RATE_END_BIT_S - 1}"
            )


def burst_bytes(rate_bit_s: float) -> int:
    """Return the size of the token bucket at a rate, bytes.

    Interpolates `BURSTS` on log-log axes. Below its first point, the first line is extended down to `BURST_MIN`.
    Above its last point, the bucket lasts as long as at that point (0.42 ms), since timers are no finer.

    A full bucket is sent at once, unshaped: do not judge the rate by transfers under 8 times its size.
    """
    last_rate, last_burst = BURSTS[-1]
    if rate_bit_s >= last_rate:
        return round(last_burst * rate_bit_s / last_rate)
    upper = max(1, next(i for i, (rate, _) in enumerate(BURSTS) if rate_bit_s < rate))
    (rate0, burst0), (rate1, burst1) = BURSTS[upper - 1 : upper + 1]
    slope = math.log(burst1 / burst0) / math.log(rate1 / rate0)
    return max(BURST_MIN, round(burst0 * math.pow(rate_bit_s / rate0, slope)))


def libc(function: str, *arguments: int | bytes | None) -> None:
    """Call a function of the C library that returns 0 or sets errno."""
    if getattr(LIBC, function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def making(what: str, remedy: str) -> Iterator[None]:
    """Turn an error of the kernel into one line with its remedy."""
    try:
        yield
    except (pyroute2.NetlinkError, OSError) as problem:
        raise UnavailableError(f"cannot make {what} ({problem.args[-1]}); {remedy}") from problem


def new_network_namespace() -> int:
    """Move this process into a new network namespace and return a descriptor of it."""
    libc("unshare", CLONE_NEWNET)
    return os.open("/proc/self/ns/net", os.O_RDONLY)


def build(hosts: list[Host]) -> dict[str, int]:
    """Make the hosts and the bridge between them; return each host's network namespace."""
    with making("a network namespace", "is sysctl user.max_net_namespaces too low?"):
        namespaces = {host.name: new_network_namespace() for host in hosts}
        new_network_namespace()  # for the bridge; the descriptor keeps it alive when this process leaves it
    with pyroute2.IPRoute() as ip:
        with making("a bridge", "load its module: modprobe bridge"):
            ip.link("add", ifname="bridge", kind="bridge", state="up")
        bridge = ip.link_lookup(ifname="bridge")[0]
        for number, host in enumerate(hosts):
            peer = {"ifname": "eth0", "net_ns_fd": namespaces[host.name]}
            with making("a veth pair", "load its module: modprobe veth"):
                ip.link("add", ifname=f"port{number}", kind="veth", peer=peer)
            ip.link("set", index=ip.link_lookup(ifname=f"port{number}")[0], master=bridge, state="up")
    for host in hosts:
        libc("setns", namespaces[host.name], CLONE_NEWNET)
        configure(host)
    return namespaces


def configure(host: Host) -> None:
    """Set addresses, routes and rate in the current network namespace."""
    with pyroute2.IPRoute() as ip:
        eth0 = ip.link_lookup(ifname="eth0")[0]
        ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")
        ip.addr("add", index=eth0, address=host.address, prefixlen=PREFIX_LENGTH)
        ip.link("set", index=eth0, state="up")
        # The machine's default may be bbr, which is slower: by a quarter between hosts at 10 Gbit/s, by two
        # thirds within one host. It is set on the routes, since the sysctl may be read-only.
        others = {"dst": f"{SUBNET}/{PREFIX_LENGTH}", "table": TABLE_MAIN, "scope": "link"}
        itself = {"dst": host.address, "table": TABLE_LOCAL, "scope": "host", "type": "local"}
        with making("a route with the congestion control cubic", "load its module: modprobe tcp_cubic"):
            for route in (others, itself):
                ip.route("replace", oif=eth0, prefsrc=host.address, metrics={"cc_algo": "cubic"}, **route)
                found = ip.get_routes(
                    family=socket.AF_INET, oif=eth0, table=route["table"], scope=route["scope"]
                )
                if {entry.get_nested("RTA_METRICS", "RTAX_CC_ALGO") for entry in found} != {"cubic"}:
                    raise OSError(0, "the kernel did not keep it")
    if host.rate_bit_s is not None:
        limit_packets(burst_bytes(host.rate_bit_s))
        shape(host.rate_bit_s)


def limit_packets(burst: int) -> None:
    """Let TCP hand down packets of at most half a bucket.

    `tbf` cuts a packet that its bucket cannot hold into frames and waits for tokens before each: at
    200 Mbit/s every 60 us. Without this limit compute beside communication took a fifth of the step
    longer there (not at 250 Mbit/s, whose bucket holds the largest packet); with it, a twentieth.
    """
    with pyroute2.IPRoute() as ip, making("a limit on packet sizes", "a kernel of 4.16 or later is needed"):
        size = min(GSO_MAX, max(GSO_MIN, burst // 2))
        ip.link("set", index=ip.link_lookup(ifname="eth0")[0], gso_max_size=size)


def shape(rate_bit_s: int | None, burst_min: int = 0) -> None:
    """Set the rate at which eth0 of the current network namespace sends, bit/s; None is unshaped."""
    with pyroute2.IPRoute() as ip, making("a token bucket", "load its module: modprobe sch_tbf"):
        eth0 = ip.link_lookup(ifname="eth0")[0]
        if rate_bit_s is None:
            ip.tc("del", index=eth0, parent=TC_H_ROOT)
        else:
            burst = max(burst_min, burst_bytes(rate_bit_s))
            ip.tc("replace", "tbf", eth0, 0x10000, rate=rate_bit_s // 8, burst=burst, limit=QUEUE_BYTES)


def change_rates(file: Path, rates: dict[str, int | None], namespaces: dict[str, int]) -> None:
    """Apply the rates of `file` that differ from `rates`. If the file cannot be read, the rates stay."""
    try:
        new = {host.name: host.rate_bit_s for host in read(file)[0]}
        for name in [name for name in rates if new[name] != rates[name]]:
            libc("setns", namespaces[name], CLONE_NEWNET)
            shape(new[name], PACKET_MAX)
            rates[name] = new[name]
            print(json.dumps({"host": name, "rate_bit_s": new[name]}), flush=True)
    except (OSError, KeyError, TypeError, ValueError, UnavailableError) as problem:
        print(f"emulated_hosts: rates not changed: {problem!r}", file=sys.stderr, flush=True)


def no_link(path: str, flags: int) -> int:
    """Open a log; a link that others put in its place is not followed."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)


def start(host: Host, namespace: int) -> subprocess.Popen[bytes]:
    """Start a host's command in its network namespace, in a new session and process group."""

    def enter() -> None:
        libc("setns", namespace, CLONE_NEWNET)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    with (
        making(f"a process for {host.name}", "check its command and its log"),
        open(host.log, "wb", opener=no_link) as log,
    ):
        return subprocess.Popen(
            host.command,
            env=os.environ | host.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=enter,  # noqa: PLW1509  (there are no other threads)
        )


def supervise(file: Path, hosts: list[Host], grace_s: float, namespaces: dict[str, int]) -> int:
    """Run the hosts' commands to their end; return the first status that is not 0."""
    rates = {host.name: host.rate_bit_s for host in hosts}
    running = {host.name: start(host, namespaces[host.name]) for host in hosts}
    status, term_at_s, kill_at_s = 0, math.inf, math.inf
    while running:
        due_s = term_at_s if kill_at_s == math.inf else kill_at_s
        received = signal.sigtimedwait(SIGNALS, min(60, max(0, due_s - time.monotonic())))
        number = received.si_signo if received else 0
        now_s = time.monotonic()
        if number == signal.SIGHUP:
            change_rates(file, rates, namespaces)
        elif number in {signal.SIGINT, signal.SIGTERM}:
            print(json.dumps({"signal": number}), flush=True)
            status, term_at_s = status or 128 + number, min(term_at_s, now_s)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            ended = shell_status(running.pop(name).returncode)
            print(json.dumps({"host": name, "status": ended}), flush=True)
            if ended and not status:
                status, term_at_s = ended, now_s + grace_s
        if now_s >= kill_at_s:
            os.kill(-1, signal.SIGKILL)  # everything in the PID namespace but this process
            kill_at_s = now_s + KILL_AFTER_S
        elif now_s >= term_at_s and kill_at_s == math.inf:
            kill_at_s = now_s + KILL_AFTER_S
            for process in running.values():
                os.killpg(process.pid, signal.SIGTERM)
    return status


def shell_status(returncode: int) -> int:
    """Return a status as shells do: 128 + n for signal n."""
    return returncode if returncode >= 0 else 128 - returncode


def read(file: Path, digest: str = "") -> tuple[list[Host], dict[str, Any]]:
    """Return the hosts of network.json, and its whole content, which has to have the digest where one is given."""
    network = json.loads(file.read_text())
    if digest and hashlib.sha256(json.dumps(network, sort_keys=True).encode()).hexdigest()[:16] != digest:
        raise UnavailableError(f"{file}: was replaced after the launch began, and is not followed")
    return [Host(**host) for host in network["hosts"]], network


def first_process(file: Path, hosts: list[Host], grace_s: float, parent: int) -> int:
    """Make the network and run the commands, as the PID namespace's first process."""
    libc("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([parent], [], [], 0)[0]:
        return 128 + signal.SIGKILL  # the parent died before the line above
    # Mount the /proc of this PID namespace, since tools read /proc/<pid>. Containers that mask parts of /proc refuse.
    with contextlib.suppress(OSError):
        libc("mount", b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
    return supervise(file, hosts, grace_s, build(hosts))


def main(file: Path, digest: str = "") -> int:
    """Start the first process in new namespaces, pass signals on to it and return its status."""
    libc("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
    hosts, network = read(file, digest)
    if os.getppid() != network.get("caller_pid", os.getppid()):
        return 128 + signal.SIGKILL  # the caller died before the line above
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    with making("namespaces", f"start it as root or with: {COMMAND}"):
        libc("unshare", CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET)
        libc("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    parent = os.pidfd_open(os.getpid())
    child = os.fork()
    if child == 0:
        return first_process(file, hosts, network["grace_s"], parent)
    while True:
        number = signal.sigwait(SIGNALS)
        if number != signal.SIGCHLD:
            os.kill(child, number)
        elif (ended := os.waitpid(child, os.WNOHANG))[0] == child:
            return shell_status(os.waitstatus_to_exitcode(ended[1]))


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
    except UnavailableError as problem:
        print(f"emulated_hosts: {problem}", file=sys.stderr)
        sys.exit(os.EX_UNAVAILABLE)
