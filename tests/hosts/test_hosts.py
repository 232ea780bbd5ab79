#!/usr/bin/env python3
# SPDX-License-Identifier: BSL-1.0
"""A job on three hosts: addresses, a slow link, a cable that is pulled, a host that dies.

usage: test_hosts.py --rank PROGRAM [--conformance PROGRAM] [--train PROGRAM] [CASE...]

Cases that take long run only where DDPP_TEST_FULL is set, or where they are named.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import sys
import time
import traceback

import hosts

FULL = os.environ.get("DDPP_TEST_FULL", "") != ""
LIMIT = 300 if FULL else 100  # seconds for one case
OF_ALL_CONFORMANCE = "all_reduce with each*,all_to_all*,the forms*,split by*,subgroups*,receives*,opposite*,revoke*,agree*,shrink*,recover*,all ranks report*"
SILENCE = 30  # seconds, socket.hpp's longest_silence
# A silent host is missed when nothing has come from it for so long, looked at every ten seconds at most, and after the
# half second that a goodbye might still take.
LONGEST_UNTIL_MISSED = SILENCE + 12
FASHION = "/usr/share/datasets/fashion-mnist"

programs = None  # the command line


def check(holds, what):
    if not holds:
        raise AssertionError(what)


def listening(host):
    """Local addresses of all sockets that listen there."""
    return {line.split()[3].rsplit(":", 1)[0] for line in host.output("ss", "-Hltn").splitlines()}


def ends_of_connections(host):
    """Addresses at both ends of its connections, but for those to the store."""
    ends = [line.split()[2:4] for line in host.output("ss", "-Htn", "state", "established").splitlines()]
    return {end.rsplit(":", 1)[0] for pair in ends if not any(end.endswith(":29500") for end in pair) for end in pair}


def meet(machines, address, **options):
    ranks = hosts.Ranks(machines, [programs.rank, "meet"], address, **options)
    try:
        ranks.await_line("ready")
        ranks.tell("sum")
        ranks.await_line("summed")
    except BaseException:
        ranks.__exit__()
        raise
    return ranks


# Addresses.


def names_and_addresses(network):
    """By name and by address, IPv4 and IPv6, two ranks on one host; nothing listens on all addresses, or on loopback."""
    a, b, c = network.hosts
    for address in ("a", a.ipv4, a.ipv6):
        with meet([a, b, c, c], address) as ranks:
            for host in network.hosts:
                there = listening(host)
                check(there and there <= {host.ipv4, f"[{host.ipv6}]"}, f"{host.name} listens at {there}")
            ranks.check_all_end_well()


def own_names_are_loopback(network):
    """As Debian's installer writes /etc/hosts."""
    network.write_hosts(own_name_is_loopback=True)
    a, b, c = network.hosts
    with meet([a, b, c, a], "a") as ranks:
        for host in network.hosts:
            check(listening(host) == {host.ipv4}, f"{host.name} listens at {listening(host)}")
        ranks.check_all_end_well()


def one_kind_of_address(network):
    """The master's name has an IPv6 address only; and both, of which the one that is tried first is refused, or silent."""
    a, b, c = network.hosts
    for host in network.hosts:
        host.write_hosts(f"{a.ipv6} master\n{a.ipv6} both\n{a.ipv4} both\n")
    for serves in ("master", "both", a.ipv4, a.ipv6):
        with meet(network.hosts, "both", each=lambda rank: {"MASTER_ADDR": serves} if rank == 0 else {}) as ranks:
            ranks.check_all_end_well()
    for host in (b, c):
        host.write_hosts(f"fd77::99 both\n{a.ipv4} both\n")
    with meet(network.hosts, a.ipv4, each=lambda rank: {} if rank == 0 else {"MASTER_ADDR": "both"}) as ranks:
        ranks.check_all_end_well()


def recorded_address(ranks, rank, record):
    """What the rank writes into its flight record when it is asked."""
    file = pathlib.Path(f"{record}.world.rank{rank}.json")
    file.unlink(missing_ok=True)
    os.kill(ranks.process_id(rank), signal.SIGUSR2)
    until = time.monotonic() + hosts.PATIENCE
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.01)
    return json.loads(file.read_text())["address"]


def chosen_interfaces(network):
    """A second interface with overlapping routes, whose name begins with another's."""
    a, b, c = network.hosts
    others = {}
    for host in network.hosts:
        host.add_interface("eth0.1", "switch", f"10.77.0.{100 + host.number}")
        others[host] = f"10.77.0.{100 + host.number}"
    firsts = {host: host.ipv4 for host in network.hosts}
    for choice, used in (("eth0.1", others), ("eth0", firsts), ("^eth0", others), ("^eth0.1,lo", firsts), ("eth7,eth0.1", others)):
        record = hosts.SCRATCH / "record"
        environment = {"DDPP_SOCKET_IFNAME": choice, "DDPP_FLIGHT_RECORDER": str(record)}
        with meet([a, b, c, c], a.ipv4, environment=environment) as ranks:
            for rank, host in enumerate(network.hosts):
                said = recorded_address(ranks, rank, record)
                check(said == used[host], f"{choice}: {host.name} records {said}")
            for host in network.hosts:
                check(listening(host) <= {used[host], a.ipv4}, f"{choice}: {host.name} listens at {listening(host)}")
                ends = ends_of_connections(host)
                check(ends and ends <= set(used.values()), f"{choice}: {host.name} is connected from and to {ends}")
            ranks.check_all_end_well()
    with hosts.Ranks(network.hosts, [programs.rank, "meet"], "a", each=lambda rank: {"DDPP_SOCKET_IFNAME": "eth"} if rank == 1 else {}) as ranks:
        status, said = ranks.outcome(1)
        check(status == 3 and "DDPP_SOCKET_IFNAME" in said and "eth0.1" in said, f"ended with {status}: {said}")


def loopback_is_not_for_others(network):
    """Ranks that meet by a file know no address of theirs that others reach, unless it is chosen."""
    environment = {"DDPP_INIT_METHOD": f"file://{hosts.SCRATCH}/meeting"}
    with hosts.Ranks(network.hosts, [programs.rank, "meet"], "a", environment=environment) as ranks:
        for rank, (status, said) in enumerate(ranks.outcomes()):
            check(status == 3, f"rank {rank} ended with {status}: {said}")
            check(rank == 0 or "offers 127.0.0.1" in said and "DDPP_SOCKET_IFNAME" in said, f"rank {rank}: {said}")
    environment["DDPP_SOCKET_IFNAME"] = "eth0"
    with meet(network.hosts, "a", environment=environment) as ranks:
        ranks.check_all_end_well()


def short_queue(network):
    """64 ranks come at once to a host whose queue for connections takes four."""
    machines = [network.hosts[rank % 3] for rank in range(64)]
    for host in network.hosts:
        host.system("sh", "-c", "echo 4 > /proc/sys/net/core/somaxconn")
    with hosts.Ranks(machines, [programs.rank, "meet", "60"], "a") as ranks:
        ranks.await_line("ready")
        ranks.check_all_end_well()


def few_descriptors(network):
    """64 ranks with 64 descriptors each: too few for who serves them, who says so; the others name where nobody is."""
    machines = [network.hosts[rank % 3] for rank in range(64)]
    with hosts.Ranks(machines, ["prlimit", "--nofile=64", programs.rank, "meet", "10"], "a") as ranks:
        outcomes = ranks.outcomes()
    check(all(status == 3 for status, _ in outcomes), f"{outcomes}")
    check("ulimit -n" in outcomes[0][1], outcomes[0][1])
    check(all("a:29500" in said for _, said in outcomes[1:]), f"{outcomes}")


# What runs elsewhere on one host.


def conformance(network):
    machines = network.hosts * 3
    environment = {"DDPP_TEST_RANKS": "outside", "DDPP_TEST_MOST_RANKS": str(len(machines)), "TMPDIR": str(hosts.SCRATCH)}
    # Not: ranks of their own in one; memory that all ranks see in the other.
    command = [programs.conformance, "--test-case-exclude=*serves the store has died*,*when the same program runs again*"]
    if not FULL:
        command.append(f"--test-case={OF_ALL_CONFORMANCE}")
    with hosts.Ranks(machines, command, "a", environment=environment) as ranks:
        outcomes = ranks.outcomes(patience=LIMIT)
    counts = [re.search(r"^(\d+) passed, 0 failed", said, re.MULTILINE) for _, said in outcomes]
    check(all(status == 0 for status, _ in outcomes) and all(count and int(count[1]) > 12 for count in counts),
          "".join(f"\nrank {rank} ended with {status}: {said}" for rank, (status, said) in enumerate(outcomes) if status != 0))


def training(network):
    """Two ranks per host that share memory there: the losses are those of one rank."""
    def losses(said):
        return re.findall(r"^ +\d+ +(\d\.\d+)", said, re.MULTILINE)

    command = [programs.train, "--transport", "hierarchical", "--epochs", "1", "--batch", "1024", "--precision", "double", "--data", FASHION]
    network.hosts[1].limit("200mbit")
    with hosts.Ranks(2 * network.hosts, command, "a") as ranks:
        outcomes = ranks.outcomes(patience=LIMIT)
    with hosts.Ranks(network.hosts[:1], command, "a") as alone:
        right = losses(alone.outcome(0)[1])
    check(len(right) == 1 and losses(outcomes[0][1]) == right, f"{outcomes[0][1]} instead of {right}")
    check(all(status == 0 for status, _ in outcomes), f"{outcomes}")


# Failures.


def a_host_dies(network):
    """While others use it: they hear within seconds that its rank is lost. First the last one, then that of rank 0."""
    machines = network.hosts
    while len(machines) > 1:
        victim = len(machines) - 1 if len(machines) == 3 else 0
        with hosts.Ranks(machines, [programs.rank, "exchange"], machines[0].name) as ranks:
            ranks.await_line("ready")
            machines[victim].kill()
            check_survivors(ranks, victim, 10)
        machines = [host for host in machines if host.is_up()]


def check_survivors(ranks, victim, limit):
    begin = time.monotonic()
    for rank in range(len(ranks.hosts)):
        if rank == victim:
            continue
        status, said = ranks.outcome(rank, patience=limit)
        print(f"  rank {rank} after {time.monotonic() - begin:.1f} s: {said.strip()}", flush=True)
        check(status == 3 and said.startswith("peer_lost") and f"rank {victim} " in said, f"rank {rank}: {status}: {said}")


def pull_cables(network, task, victim, then=lambda host: None):
    with hosts.Ranks(network.hosts, [programs.rank, task], "a") as ranks:
        ranks.await_line("ready")
        time.sleep(0.5)
        network.hosts[victim].cut()
        then(network.hosts[victim])
        check_survivors(ranks, victim, LONGEST_UNTIL_MISSED)


def a_cable_is_pulled_while_others_receive(network):
    pull_cables(network, "recv", 2)


def a_cable_is_pulled_while_others_send(network):
    pull_cables(network, "exchange", 2)


def the_cable_of_rank_0_is_pulled(network):
    pull_cables(network, "all_reduce", 0)


def a_host_dies_behind_its_cable(network):
    """No end of file and no reset arrives."""
    pull_cables(network, "all_reduce", 1, hosts.Host.kill)


def two_hosts_lose_each_other(network):
    """While both still reach the third."""
    a, b, c = network.hosts
    with hosts.Ranks(network.hosts, [programs.rank, "exchange"], "a") as ranks:
        ranks.await_line("ready")
        time.sleep(0.5)
        b.forget(c)
        c.forget(b)
        for rank, (status, said) in enumerate(ranks.outcomes(LONGEST_UNTIL_MISSED)):
            print(f"  rank {rank}: {said.strip()}", flush=True)
            check(status == 3 and said.startswith("peer_lost"), f"rank {rank}: {status}: {said}")


def a_rank_is_stopped(network):
    """For longer than a host may be silent: its system answers, so it is not lost, and all go on once it does."""
    with hosts.Ranks(network.hosts, [programs.rank, "exchange"], "a") as ranks:
        ranks.await_line("ready")
        os.kill(ranks.process_id(1), signal.SIGSTOP)
        time.sleep(2 * SILENCE)
        ranks.processes[1].send_signal(signal.SIGCONT)  # nsenter stops with its child, and continues it
        time.sleep(2)
        check(all(process.poll() is None for process in ranks.processes), "a rank has ended")
        network.hosts[1].kill()
        check_survivors(ranks, 1, 10)


SHORT = [names_and_addresses, own_names_are_loopback, one_kind_of_address, chosen_interfaces, loopback_is_not_for_others,
         few_descriptors, a_host_dies, training, conformance]
LONG = [short_queue, a_rank_is_stopped, a_cable_is_pulled_while_others_receive, a_cable_is_pulled_while_others_send, the_cable_of_rank_0_is_pulled,
        a_host_dies_behind_its_cable, two_hosts_lose_each_other]


def out_of_time(*_):
    raise TimeoutError(f"it has not ended within {LIMIT} s")


def chosen_cases():
    if programs.cases:
        return [case for case in SHORT + LONG if case.__name__ in programs.cases]
    missing = [name for name in ("conformance", "train") if not getattr(programs, name)]
    return [case for case in SHORT + (LONG if FULL else [])
            if not (case is conformance and "conformance" in missing) and not (case is training and "train" in missing)]


def main():
    global programs
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", required=True, type=os.path.abspath)
    parser.add_argument("--conformance", type=os.path.abspath)
    parser.add_argument("--train", type=os.path.abspath)
    parser.add_argument("cases", nargs="*")
    programs = parser.parse_args()
    cases = chosen_cases()
    why_not = hosts.reason_against()
    if why_not:
        for case in cases:
            print(f"skip hosts/{case.__name__}: {why_not}")
        print(f"0 passed, 0 failed, {len(cases)} skipped")
        return 0
    hosts.move_in()
    signal.signal(signal.SIGALRM, out_of_time)
    failed = 0
    for case in cases:
        begin = time.monotonic()
        signal.alarm(LIMIT)
        try:
            with hosts.Network() as network:
                case(network)
            print(f"{case.__name__}: passed after {time.monotonic() - begin:.1f} s", flush=True)
        except Exception as error:
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"{case.__name__}: failed: {error}", flush=True)
    signal.alarm(0)
    print(f"{len(cases) - failed} passed, {failed} failed, 0 skipped")
    return failed != 0


sys.exit(main())
