"""Places: NICs and CPUs on another NUMA node than the GPUs they serve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from orchestrator.doctor.evidence import MachineEvidence
from orchestrator.doctor.finding import Finding, note, passed, unread, warning


def check_numa(machine: MachineEvidence) -> tuple[Finding, ...]:
    """Judge where RDMA NICs sit, and whether this process may run near its GPUs."""
    return (*_nics(machine), *_affinity(machine))


def _nics(machine: MachineEvidence) -> Iterator[Finding]:
    check = "nic-numa"
    rdma = [nic for nic in machine.nics if nic.is_rdma]
    if not rdma or not machine.gpus:
        return
    places = [*(nic.numa for nic in rdma), *(gpu.numa for gpu in machine.gpus)]
    unplaced = [numa for numa in places if numa.value is None]
    if unplaced:
        title = "NUMA nodes of some GPUs or RDMA NICs"
        yield unread(check, title, unplaced, "Firmware and virtual machines may hide them; bind by hand if you know.")
    gpus = Counter(gpu.numa.value for gpu in machine.gpus if gpu.numa.value is not None)
    nics = Counter(nic.numa.value for nic in rdma if nic.numa.value is not None)
    without = sorted(node for node in gpus if node not in nics)
    spare = sorted(node for node in nics if nics[node] > gpus[node])
    evidence = "; ".join(
        f"node {node}: {gpus[node]} GPU(s), {nics[node]} RDMA port(s)" for node in sorted(gpus.keys() | nics.keys())
    )
    if without and spare:
        title = f"GPUs on NUMA node {_nodes(without)} have no RDMA NIC near them, node {_nodes(spare)} has spare ones"
        remedy = "Move a NIC to a slot of that socket; until then their traffic crosses the link between the sockets."
        yield warning(check, title, evidence, remedy)
    elif without and nics:
        title = f"GPUs on NUMA node {_nodes(without)} reach RDMA NICs only across sockets"
        yield note(check, title, evidence, "Ranks of the nearer GPUs send faster: prefer them for runs over hosts.")
    elif not unplaced:
        yield passed(check, "each NUMA node with GPUs has an RDMA NIC", evidence)


def _nodes(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes))


def _affinity(machine: MachineEvidence) -> Iterator[Finding]:
    check, usable = "cpu-affinity", machine.cpus
    gpus = [gpu for gpu in machine.gpus if gpu.is_visible and gpu.lost is None]
    if not gpus:
        return
    unknown = [gpu.cpus for gpu in gpus if gpu.cpus.value is None]
    if usable.value is None or unknown:
        yield unread(check, "whether this process may run near its GPUs", (usable, *unknown))
    if usable.value is None:
        return
    mine = set(usable.value)
    apart = [gpu for gpu in gpus if gpu.cpus.value and not mine & set(gpu.cpus.value)]
    if apart:
        title = "this process may not run on any CPU near some of its GPUs"
        evidence = f"{len(mine)} usable CPU(s); " + "; ".join(gpu.label for gpu in apart)
        remedy = (
            "Ask the scheduler for CPUs of the GPU's socket (`--gpu-bind=closest`, `--cpuset-cpus`), or start from a "
            "shell that is not pinned. Copies to these GPUs cross sockets."
        )
        yield warning(check, title, evidence, remedy)
    elif not unknown:
        yield passed(check, "this process may run near all of its GPUs")
