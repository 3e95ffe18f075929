"""Driver, device files and containers: why GPUs that exist cannot be used here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from orchestrator.doctor.evidence import ContainerEvidence, MachineEvidence
from orchestrator.doctor.finding import Finding, error, note, passed, unread, warning
from topology.reading import Reading

_SHOWN: Final = 4
_GPU_FILE: Final = re.compile(r"/dev/nvidia\d+$")
_TOOLKIT: Final = (
    "Start it with the GPUs: `docker run --gpus all` with the NVIDIA Container Toolkit, `apptainer exec --nv`, "
    "`nvidia.com/gpu` in the resources of a Kubernetes pod."
)
_INSTALL: Final = (
    "Install the driver, or load it (`modprobe nvidia`); `dmesg | grep -i nvrm` tells why it does not start. "
    "Blackwell cards need its open kernel modules."
)
_SEE: Final = "`dmesg | grep -iE 'nvrm|xid'` tells the driver's side;"
_WRONG_LIBRARY: Final = (
    "The file found as libnvidia-ml.so.1 is not the driver's, or damaged: look at `ldconfig -p | grep libnvidia-ml` "
    "and LD_LIBRARY_PATH, and install the driver's libraries again (in a container the toolkit mounts the host's)."
)
# Codes of nvmlInit, from nvml.h.
_INIT_REMEDIES: Final = {
    "LIB_RM_VERSION_MISMATCH": (
        "The library was updated under a running kernel module: reboot, or unload and load the nvidia modules "
        "(in a container: restart it, so that the toolkit mounts the new library)."
    ),
    "DRIVER_NOT_LOADED": "Load the driver: `modprobe nvidia`; `dmesg | grep -i nvrm` tells why it does not start.",
    "NO_PERMISSION": "Run it as a user who may open /dev/nvidiactl and /dev/nvidia*.",
    "OPERATING_SYSTEM": "A control group or seccomp filter hides the device files: ask for the GPUs (`--gres=gpu:N`).",
    "GPU_IS_LOST": "A GPU fell off the bus: reboot the host, and look for `Xid 79` in dmesg.",
    "LIBRARY_NOT_FOUND": (
        "A library that the driver's own needs is missing: install the driver's libraries again, in the version of "
        "the kernel module (`cat /proc/driver/nvidia/version`)."
    ),
    "FUNCTION_NOT_FOUND": _WRONG_LIBRARY,
    "AttributeError": _WRONG_LIBRARY,
    "UNKNOWN": (
        f"{_SEE} load the nvidia modules again, or reboot. Under a scheduler, ask for the GPUs (`--gres=gpu:N`): its "
        "control group may hide them."
    ),
}
# docs.nvidia.com/datacenter/cloud-native/container-toolkit, troubleshooting, and NVIDIA/nvidia-container-toolkit
# issue 48 (2026-11): devices given by the runtime hook are taken away when systemd rewrites the control group.
_TAKEN_AWAY: Final = (
    "Restart the container: a reload of systemd on the host (`systemctl daemon-reload`) takes the devices away from "
    "running containers (NVIDIA Container Toolkit documentation, troubleshooting). So that it stays away: toolkit 1.18 "
    "or newer, or devices by CDI (`docker run --device nvidia.com/gpu=all`) or one by one (`--device /dev/nvidiactl "
    "--device /dev/nvidia-uvm --device /dev/nvidia0`)."
)
# What is said where NVML ends without a code of its own -> what helps.
_OTHER_REMEDIES: Final = (
    ("nvidia-ml-py is not installed", "`pip install nvidia-ml-py` (a dependency of trainmaster)."),
    (
        "does not answer within",
        f"The driver hangs: {_SEE} look for stuck processes (`ps -eo stat,comm | grep ^D`), reboot.",
    ),
    ("ends the process|ends without", f"The driver's library crashes: libraries of two versions? {_WRONG_LIBRARY}"),
    ("cannot be loaded", _WRONG_LIBRARY),
    ("no process could be started", "Look at the limits of processes and memory (`ulimit -a`), then run it again."),
)
# The one thing that says there is no driver; all else is a driver that fails.
_ABSENT: Final = "libnvidia-ml.so.1 not found"


def check_container(container: ContainerEvidence, machine: MachineEvidence) -> tuple[Finding, ...]:
    """Judge which of the machine's GPUs and NICs this process can open."""
    return (*_driver(container, machine), *_hidden(container, machine), *_uvm(container), *_rdma(container))


def _driver(container: ContainerEvidence, machine: MachineEvidence) -> Iterator[Finding]:
    check = "driver"
    where = f" in this container ({', '.join(container.marks)})" if container.marks else ""
    if machine.unavailable is not None:
        yield from _silent(container, machine.unavailable, where)
    else:
        driver = machine.driver.value or f"of unknown version ({machine.driver.error})"
        if machine.gpus:
            yield passed(check, f"the driver answers, {len(machine.gpus)} GPU(s)", f"driver {driver}")
        else:
            hint = _TOOLKIT if container.marks else "`dmesg | grep -i nvrm` tells what it found."
            yield note(check, f"the driver answers and shows no GPU{where}", f"driver {driver}", hint)
        yield from _unseen(container, machine, where)


def _silent(container: ContainerEvidence, unavailable: str, where: str) -> Iterator[Finding]:
    """Where the way from the bus to NVML breaks off."""
    check = "driver"
    on_bus, by_driver = container.bus_gpus.value or (), container.driver_gpus.value or ()
    files = [name for name in container.device_files.value or () if _GPU_FILE.match(name)]
    known = "; ".join(
        (
            f"PCI bus: {_count(container.bus_gpus)}",
            f"driver: {_count(container.driver_gpus)}",
            f"files: {', '.join(files) or 'no /dev/nvidiaN'}",
        )
    )
    evidence = f"{unavailable}; {known}"
    if _ABSENT not in unavailable:
        remedy = _remedy(unavailable, in_container=bool(container.marks), has_files=bool(container.device_files.value))
        yield error(check, f"the NVIDIA driver is there and does not answer{where}", evidence, remedy)
    elif files:
        title = f"device files are there, but the driver's library is not usable{where}"
        yield error(check, title, evidence, _TOOLKIT if container.marks else _INSTALL)
    elif by_driver and container.device_files.value is None:
        yield unread(check, f"the device files of {len(by_driver)} GPU(s); {evidence}", (container.device_files,))
    elif by_driver:
        title = f"the driver has GPUs, but no device file is there{where}"
        yield error(check, title, evidence, _TOOLKIT if container.marks else "Run `nvidia-modprobe -u -c=0` as root.")
    elif on_bus:
        title = f"NVIDIA GPUs on the PCI bus have no driver{where}"
        yield error(check, title, evidence, _TOOLKIT if container.marks else _INSTALL)
    elif container.bus_gpus.error is not None:
        yield unread(check, f"whether there are GPUs; {unavailable}", (container.bus_gpus,))
    else:
        hint = _TOOLKIT if container.marks else ""
        yield note(check, f"no NVIDIA GPU is visible{where}; nothing about GPUs was examined", evidence, hint)


def _remedy(unavailable: str, *, in_container: bool, has_files: bool) -> str:
    code = re.search(r"\(([A-Za-z_]+)\)", unavailable)
    if code is not None and code[1] == "UNKNOWN" and in_container:
        return _TAKEN_AWAY if has_files else _TOOLKIT
    if code is not None and code[1] in _INIT_REMEDIES:
        return _INIT_REMEDIES[code[1]]
    fits = (text for said, text in _OTHER_REMEDIES if re.search(said, unavailable))
    return next(fits, f"{_SEE} load the nvidia modules again, or reboot.")


def _unseen(container: ContainerEvidence, machine: MachineEvidence, where: str) -> Iterator[Finding]:
    """GPUs of the bus that the driver does not show: hidden on purpose, or broken."""
    check, shown = "unseen-gpus", {gpu.pci for gpu in machine.gpus}
    unseen = tuple(address for address in container.bus_gpus.value or () if address not in shown)
    if not unseen or None in shown:
        return
    evidence = f"PCI bus: {', '.join(unseen)}"
    if container.marks:
        yield note(check, f"{len(unseen)} GPU(s) of the machine are not given to this process{where}", evidence)
    else:
        title = f"{len(unseen)} GPU(s) on the PCI bus are not shown by the driver"
        remedy = (
            "`dmesg | grep -i nvrm` tells why (RmInitAdapter failed, Xid 79, a card of a kind this driver does not "
            "know); no fault if they are given to a virtual machine or hidden by the scheduler."
        )
        yield warning(check, title, evidence, remedy)


def _count(addresses: Reading[tuple[str, ...]]) -> str:
    if addresses.error not in {None, "ENOENT"}:
        return f"unknown ({addresses.error})"
    found = addresses.value or ()
    shown = ", ".join(found[:_SHOWN]) + (" ..." if len(found) > _SHOWN else "")
    return f"{len(found)} GPU(s) ({shown})" if found else "no GPU"


def _hidden(container: ContainerEvidence, machine: MachineEvidence) -> Iterator[Finding]:
    check, asked = "visible-devices", container.visible
    if asked is not None and asked.strip().lower() in {"", "void", "none"} and (machine.unavailable or container.marks):
        title = "NVIDIA_VISIBLE_DEVICES asks the container runtime for no GPU"
        yield warning(check, title, f"NVIDIA_VISIBLE_DEVICES={asked!r}", _TOOLKIT)
    usable = [gpu for gpu in machine.gpus if gpu.lost is None]  # a lost one is hidden by nobody
    seen = sum(gpu.is_visible for gpu in usable)
    if usable and not seen and machine.visible_devices is not None:
        evidence = f"CUDA_VISIBLE_DEVICES={machine.visible_devices!r}, {len(machine.gpus)} GPU(s) in the machine"
        evidence = "; ".join((evidence, *machine.visibility))
        yield warning(check, "CUDA_VISIBLE_DEVICES hides every GPU", evidence, "Unset it, or name GPUs by UUID.")
    elif usable:
        slices = sum(len(gpu.slices) for gpu in usable if gpu.is_visible)
        cut = f", {slices} MIG device(s) among them" if slices else ""
        title = f"{seen} of {len(machine.gpus)} GPU(s) are visible to CUDA{cut}"
        if machine.visibility:
            remedy = "`nvidia-smi -L` lists the UUIDs; they are safe where indices are not."
            yield note(check, title, "; ".join(machine.visibility), remedy)
        else:
            yield passed(check, title)


def _uvm(container: ContainerEvidence) -> Iterator[Finding]:
    check, files = "device-files", container.device_files
    if files.value is None:
        if not container.is_wsl and container.driver_gpus.value:
            yield unread(check, "the device files of the GPUs", (files,))
        return
    if any(_GPU_FILE.match(name) for name in files.value):
        missing = [name for name in ("/dev/nvidiactl", "/dev/nvidia-uvm") if name not in files.value]
        if missing:
            remedy = "`nvidia-modprobe -u -c=0` as root on the host, then start the container again with its GPUs."
            title = f"CUDA cannot start without {' and '.join(missing)}"
            yield error(check, title, f"present: {', '.join(files.value)}", remedy)
        else:
            yield passed(check, "the GPUs' device files are there")


def _rdma(container: ContainerEvidence) -> Iterator[Finding]:
    check = "rdma-files"
    devices, files = container.rdma_devices.value or (), container.rdma_files.value or ()
    if devices and container.rdma_files.error not in {None, "ENOENT"}:
        yield unread(check, f"the device files of {len(devices)} RDMA NIC(s)", (container.rdma_files,))
    elif devices and not any("uverbs" in name for name in files):
        remedy = (
            "In a container: `--device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1`; "
            "on the host: `modprobe ib_uverbs`. Otherwise NCCL falls back to TCP sockets."
        )
        evidence = f"/sys/class/infiniband: {', '.join(devices)}; no /dev/infiniband/uverbs*"
        yield warning(check, "RDMA NICs have no device file here", evidence, remedy)
    elif devices:
        yield passed(check, "RDMA NICs have their device files", ", ".join(devices))
