# SPDX-License-Identifier: BSL-1.0
"""Several hosts on one machine: each has its own network interfaces, /etc/hosts, name, /dev/shm, processes and boot id.

All of it lives in namespaces below one of processes whose first is this script (`move_in`): when that ends, however it
does, the kernel ends every process in them and nothing is left. A bridge is the switch that connects the hosts.

Needs Linux's unshare and nsenter (util-linux), ip and tc (iproute2), and the right to make namespaces: as root, or where
users may have namespaces of their own.
"""
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import time

SCRATCH = pathlib.Path("/mnt")  # under a file system of our own, which goes with the namespace
INSIDE = "DDPP_TEST_INSIDE_HOSTS"
PATIENCE = 60  # seconds that nothing which works comes near


def _unshare():
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *as_root, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def reason_against():
    """Why this machine cannot have hosts; empty when it can."""
    for tool in ("unshare", "nsenter", "ip", "tc", "ss"):
        if not shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
            return f"there is no {tool}"
    probe = ("mount -t tmpfs none /mnt && ip link add name probe type bridge && ip link add name one type veth peer name two && "
             "unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc true")
    tried = subprocess.run([*_unshare(), "sh", "-c", probe], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"cannot make namespaces: {tried.stderr.strip().splitlines()[-1:]}"


def move_in():
    """Runs this script anew as the first process of the namespaces that hold the hosts; returns there."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    if os.environ.get(INSIDE):
        system("mount", "-t", "tmpfs", "none", str(SCRATCH))
        return
    sys.stdout.flush()
    os.environ[INSIDE] = "1"
    command = [*_unshare(), "sh", "-c", '"$@"; exit $?', "sh", sys.executable, *sys.argv]  # a shell buries orphans
    os.execvp(command[0], command)


def system(*command):
    subprocess.run(command, check=True)


def child_of(process):
    return int(pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


class Host:
    """One host, with an interface eth0 on the switch."""

    _cable_numbers = itertools.count()  # those of a host that has just ended are there for a while

    def __init__(self, name, number, switch):
        self.name, self.number = name, number
        self.ipv4, self.ipv6 = f"10.77.0.{number}", f"fd77::{number}"
        self._files = SCRATCH / name
        self._files.mkdir(exist_ok=True)
        self.write_hosts("")
        (self._files / "boot_id").write_text(f"00000000-0000-4000-8000-{number:012}\n")
        setup = (f"hostname {name} && mount -t tmpfs none /dev/shm && mount --bind {self._files}/hosts /etc/hosts && "
                 f"mount --bind {self._files}/boot_id /proc/sys/kernel/random/boot_id && ip link set lo up && "
                 "echo ready && exec sleep infinity")
        self._outer = subprocess.Popen(["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child",
                                        "--mount-proc", "sh", "-c", setup], 
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self._outer.stdout.readline() != "ready\n":
            raise RuntimeError(f"host {name} did not come up: {self._outer.communicate()[1]}")
        self._first = child_of(self._outer)
        self._cables = []
        self.add_interface("eth0", switch, self.ipv4, self.ipv6)

    def add_interface(self, interface, switch, *addresses):
        cable = f"cable{next(self._cable_numbers)}"
        self._cables.append(cable)
        system("ip", "link", "add", "name", cable, "type", "veth", "peer", "name", interface, "netns", str(self._first))
        system("ip", "link", "set", cable, "master", switch, "up")
        self.system("ip", "link", "set", interface, "up")
        for address in addresses:
            is_v6 = ":" in address
            self.system("ip", "address", "add", f"{address}/{64 if is_v6 else 24}", "dev", interface, *(["nodad"] if is_v6 else []))

    def command(self, *command):
        return ["nsenter", "--target", str(self._first), "--net", "--mount", "--uts", "--ipc", "--pid", "--", *map(str, command)]

    def system(self, *command):
        subprocess.run(self.command(*command), check=True)

    def output(self, *command):
        return subprocess.run(self.command(*command), check=True, stdout=subprocess.PIPE, text=True).stdout

    def start(self, command, environment):
        """A process of this host, with its output in a pipe."""
        return subprocess.Popen(self.command("setpriv", "--pdeathsig", "KILL", *command), env={**os.environ, **environment},
                                bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def write_hosts(self, text):
        """What /etc/hosts has beside localhost."""
        (self._files / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n" + text)

    def limit(self, rate):
        self.system("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")

    def cut(self):
        """Pulls the cable: nothing arrives any more, and nobody is told."""
        for cable in self._cables:
            system("ip", "link", "set", cable, "down")

    def mend(self):
        for cable in self._cables:
            system("ip", "link", "set", cable, "up")

    def forget(self, other):
        """What is sent to the other from here on gets lost."""
        for address in (other.ipv4, other.ipv6):
            self.system("ip", "neighbour", "replace", address, "lladdr", "02:00:00:00:00:77", "dev", "eth0", "nud", "permanent")

    def kill(self):
        """Ends all its processes at once. Its network goes with them, so that what they could still say, they say first."""
        os.kill(self._first, 9)
        self._outer.communicate()

    def is_up(self):
        return self._outer.poll() is None


class Network:
    """Hosts "a", "b", "c" and so on at one switch, which know each other by name."""

    def __init__(self, count=3):
        system("ip", "link", "add", "name", "switch", "type", "bridge")
        system("ip", "link", "set", "switch", "up")
        self.hosts = []
        try:
            for number in range(1, count + 1):
                self.hosts.append(Host("abcdefgh"[number - 1], number, "switch"))
        except BaseException:
            self.close()
            raise
        self.write_hosts()

    def write_hosts(self, own_name_is_loopback=False):
        for host in self.hosts:
            host.write_hosts("".join(f"{'127.0.1.1' if own_name_is_loopback and other is host else other.ipv4} {other.name}\n"
                                     for other in self.hosts))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for host in self.hosts:
            if host.is_up():
                host.kill()
        while subprocess.run(["ip", "link", "delete", "switch"], stderr=subprocess.DEVNULL).returncode == 0:
            pass


class Ranks:
    """A program on each of the given hosts, in order, several on one host where it is named several times."""

    def __init__(self, hosts, command, address, port=29500, environment=None, each=lambda rank: {}):
        self.hosts = hosts
        self.processes = []
        common = {"WORLD_SIZE": str(len(hosts)), "MASTER_ADDR": address, "MASTER_PORT": str(port),
                  "DDPP_SECRET": os.urandom(16).hex(), **(environment or {})}
        for rank, host in enumerate(hosts):
            self.processes.append(host.start(command, {**common, "RANK": str(rank), **each(rank)}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            process.stdout.close()
        self.close_inputs()

    def await_line(self, line):
        """Each rank says so, and nothing else before it."""
        for rank, process in enumerate(self.processes):
            said = process.stdout.readline().decode().rstrip()
            if said != line:
                others = "".join(f"\nrank {r}: {status}: {text}" for r, (status, text) in enumerate(self.outcomes()))
                raise AssertionError(f"rank {rank} said {said!r} instead of {line!r}, and then:{others}")

    def process_id(self, rank):
        return child_of(self.processes[rank])

    def tell(self, line):
        for process in self.processes:
            process.stdin.write(line.encode() + b"\n")

    def close_inputs(self):
        for process in self.processes:
            if process.stdin:
                process.stdin.close()
                process.stdin = None

    def outcome(self, rank, patience=PATIENCE):
        """(exit status, what it still said)"""
        said = self.processes[rank].communicate(timeout=patience)[0]
        return self.processes[rank].returncode, said.decode()

    def outcomes(self, patience=PATIENCE):
        self.close_inputs()
        until = time.monotonic() + patience
        return [self.outcome(rank, max(1, until - time.monotonic())) for rank in range(len(self.processes))]

    def check_all_end_well(self, patience=PATIENCE):
        outcomes = self.outcomes(patience)
        if any(status != 0 for status, _ in outcomes):
            raise AssertionError("".join(f"\nrank {r}: {status}: {said}" for r, (status, said) in enumerate(outcomes)))
