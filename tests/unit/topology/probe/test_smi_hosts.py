"""Text of several hosts, as the tools that ask many at once print it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from topology.errors import TopologyError
from topology.probe.smi import parse_smi, parse_smi_hosts, read_smi
from topology.probe.smi_hosts import expanded, split_hosts

ONE = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV4\tPIX\t\t0\nGPU1\tNV4\t X \tSYS\t8-15\t1\nNIC0\tPIX\tSYS\t X \t\t\n"
    "\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)
LINES = ONE.splitlines()
HOSTS = ("node01", "node02")


def prefixed(form: Callable[[str, str], str], *, is_mixed: bool = False) -> str:
    order = ((h, line) for line in LINES for h in HOSTS) if is_mixed else ((h, line) for h in HOSTS for line in LINES)
    return "\n".join(form(host, line) for host, line in order)


def headed(form: Callable[[str], str]) -> str:
    return "".join(f"{form(host)}\n{ONE}\n" for host in HOSTS)


FORMS = {
    "pdsh": prefixed(lambda host, line: f"{host}: {line}"),
    "pdsh, mixed": prefixed(lambda host, line: f"{host}: {line}", is_mixed=True),
    "brackets": prefixed(lambda host, line: f"[{host}] {line}", is_mixed=True),
    "compose": prefixed(lambda host, line: f"{host}  | {line}", is_mixed=True),
    "clush -b": headed(lambda host: f"---------------\n{host}\n---------------"),
    "clush -b, folded": f"---------------\nnode[01-02] (2)\n---------------\n{ONE}",
    "heads": headed(lambda host: f"{host}:"),
    "a loop": headed(lambda host: f"=== {host} ==="),
    "files": headed(lambda host: f"==> {host} <=="),
    "ansible": headed(lambda host: f"{host} | CHANGED | rc=0 >>"),
    "marks": headed(lambda host: f">> {host}"),
    "marks of Markdown": headed(lambda host: f"### {host}"),
    "brackets above": headed(lambda host: f"[{host}]"),
    "names above": headed(lambda host: f"Hostname: {host}"),
    "files in folders": headed(lambda host: f"==> logs/{host}.txt <=="),
    "folders with files": headed(lambda host: f"==> {host}/topo.txt <=="),
    "prompts of root": headed(lambda host: f"[root@{host} ~]# nvidia-smi topo -m"),
    "prompts": headed(lambda host: f"(base) me@{host}:~/some where$ nvidia-smi topo -m"),
    "prompts of zsh": headed(lambda host: f"me@{host} ~ % nvidia-smi topo -m"),
    "short prompts": headed(lambda host: f"{host}$ nvidia-smi topo -m"),
    "commands at hosts": headed(lambda host: f"me@login:~$ ssh -o BatchMode=yes root@{host} 'nvidia-smi topo -m'"),
    "steps at hosts": headed(lambda host: f"$ srun -N1 -w {host} nvidia-smi topo -m"),
    "pssh": headed(lambda host: f"[1] 12:00:00 [SUCCESS] {host}"),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_host_has_its_own_devices(form: str) -> None:
    topology = parse_smi_hosts(FORMS[form])
    assert [host.name for host in topology.hosts] == list(HOSTS)
    assert [device.id for device in topology.gpus] == [f"{host}/gpu{at}" for host in HOSTS for at in (0, 1)]
    assert [device.numa for device in topology.gpus] == [0, 1, 0, 1]
    assert [nic.id for nic in topology.nics] == [f"{host}/mlx5_0" for host in HOSTS]
    assert {switch.host for switch in topology.switches} == set(HOSTS)
    assert read_smi(FORMS[form], host="x") == topology
    with pytest.raises(TopologyError, match="2 hosts: node01, node02"):
        parse_smi(FORMS[form], host="x")


def test_ranks_of_srun_and_mpirun_are_hosts() -> None:
    srun = prefixed(lambda host, line: f"  {host[-1]}: {line}", is_mixed=True)
    assert [host.name for host in parse_smi_hosts(srun).hosts] == ["1", "2"]
    mpirun = prefixed(lambda host, line: f"[1,{host[-1]}]<stdout>:{line}", is_mixed=True)
    assert [host.name for host in parse_smi_hosts(mpirun).hosts] == ["1.1", "1.2"]


@pytest.mark.parametrize(
    "text",
    [
        ONE,
        f"Before:\n{ONE}\nAfter:\n{ONE}",
        f"me@box:~$ nvidia-smi topo -m\n{ONE}me@box:~$ nvidia-smi topo -m\n{ONE}me@box:~$\n",
        f"me@box1:~$ nvidia-smi\nbash: nvidia-smi: command not found\nme@box2:~$ nvidia-smi topo -m\n{ONE}",
        f"### GPU0\n{ONE}\n### GPU1\n{ONE}",
        f"me@mail.org wrote:\n{ONE}\nyou@mail.com wrote:\n{ONE}",
        f"step1:\n{ONE}\nstep2:\n{ONE}",
        "\n".join(f"node01: {line}" for line in LINES),
        "\n".join(f"{at:3}: {line}" for at, line in enumerate(LINES)),
        "\n".join(f"12:30:0{at % 9} INFO: {line}" for at, line in enumerate(LINES)),
    ],
)
def test_one_host_is_not_split(text: str) -> None:
    assert split_hosts(text) == ()
    assert [host.name for host in read_smi(text, host="x").hosts] == ["x"]
    with pytest.raises(TopologyError, match="no two hosts"):
        parse_smi_hosts(text)


def test_damage_of_one_host_is_told_with_its_line_in_the_whole_text() -> None:
    text = FORMS["pdsh, mixed"].replace("node02: GPU1\tNV4", "node02: GPU1\tSYS")
    with pytest.raises(TopologyError) as caught:
        parse_smi_hosts(text)
    assert caught.value.problems == ("node02: lines 4 and 6: GPU0 - GPU1 is NV4 one way and SYS the other",)
    with pytest.raises(TopologyError, match="node02"):
        parse_smi_hosts("\n".join(line for line in text.splitlines() if not line.startswith("node02: GPU1")))


def test_a_host_whose_driver_failed_is_told() -> None:
    failed = "Failed to initialize NVML: Driver/library version mismatch"
    with pytest.raises(TopologyError) as caught:
        parse_smi_hosts(f"{FORMS['ansible']}node03 | FAILED | rc=18 >>\n{failed}\n")
    (problem,) = caught.value.problems
    assert problem.startswith("node03: line 30: 'Failed to initialize NVML")
    with pytest.raises(TopologyError, match=r"node03: line 13: .* another version"):
        read_smi("\n".join([*(f"node01: {line}" for line in LINES), f"node03: {failed}"]), host="x")


def test_what_is_true_of_some_hosts_is_told_of_these() -> None:
    odd = FORMS["pdsh"].replace("node02: GPU1\tNV4\t X \tSYS\t8-15\t1", "node02: GPU1\tNV4\t X \tSYS\t8-15\t1,3")
    warnings = parse_smi_hosts(odd).warnings
    assert any(warning.startswith("node02: GPU1: NUMA affinity 1,3") for warning in warnings)
    assert any(warning.startswith("the text tells no names") for warning in warnings)


@pytest.mark.parametrize(
    ("folded", "names"),
    [
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[08-10,12],m1", ("n08", "n09", "n10", "n12", "m1")),
        ("r1n[1-2]-ib", ("r1n1-ib", "r1n2-ib")),
        ("n[1-2", ("n[1-2",)),
    ],
)
def test_folded_sets(folded: str, names: tuple[str, ...]) -> None:
    assert expanded(folded) == names


def test_too_many_hosts_are_refused() -> None:
    with pytest.raises(TopologyError, match="2049 hosts, more than 2048"):
        parse_smi_hosts(f"----\nn[1-9999]\n----\n{ONE}")
