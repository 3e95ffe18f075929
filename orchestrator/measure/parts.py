"""The parts of the bench: what each measures, and the module that is started for it.

To add a part, add a row here and serve its name in its module (`serve.serve`); its numbers become the section of that
name in the calibration file. Modules are named as texts, so that looking at this table loads none of their libraries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from orchestrator.config_codec import nearest
from orchestrator.errors import Problem, UserError

ALL: Final = "all"


class Where(Enum):
    """How often a module is started.

    `device`: once for each kind of GPU; on CPUs once for each rank of a usual run, at the same time, since ranks share
    memory and clocks. `host`: one process, which may start others.
    """

    device = "device"
    host = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the bench.

    Attributes:
        name: in `bench.only`, and of its section in the file.
        module: run as `python -m MODULE REQUEST`, see `serve`.
        where: how often.
        text: what it measures, in a line.
        devices: kinds of devices (as torch calls them) that have such a thing.
        seconds: after which it is given up.
    """

    name: str
    module: str
    where: Where
    text: str
    devices: tuple[str, ...] = ("cpu", "cuda")
    seconds: float = 300.0


_DEVICE: Final = "orchestrator.measure.device"
_ON_HOST: Final = "orchestrator.measure.on_host"
_CUDA: Final = ("cuda",)
PARTS: Final = (
    Part(name="context", module=_DEVICE, where=Where.device, text="bytes outside torch's allocator", devices=_CUDA),
    Part(name="gemm", module=_DEVICE, where=Where.device, text="matrix products in fp32, bf16 and fp16"),
    Part(name="memory", module=_DEVICE, where=Where.device, text="copies within memory"),
    Part(name="dequantise", module=_DEVICE, where=Where.device, text="unpacking of NF4 weights"),
    Part(name="transfer", module=_DEVICE, where=Where.device, text="copies to the device and back", devices=_CUDA),
    Part(name="overhead", module=_DEVICE, where=Where.device, text="host time of a kernel and of a decoder layer"),
    Part(name="layer", module=_DEVICE, where=Where.device, text="what of a layer is no product", devices=("cpu",)),
    Part(
        name="stack",
        module="orchestrator.measure.stack",
        where=Where.host,
        text="memory of logits and layers in the installed libraries",
    ),
    Part(name="links", module=_ON_HOST, where=Where.host, text="copies between devices, alone and at once"),
    Part(name="collectives", module=_ON_HOST, where=Where.host, text="collectives: torch's own and by schedules"),
)


def chosen_parts(only: Sequence[str], device: str) -> tuple[Part, ...]:
    """Return the parts that `bench.only` names, in the order of the table.

    Args:
        only: names of parts; `all` stands for those that the device has.
        device: `cpu` or `cuda`.

    Raises:
        UserError: names that are none, or parts that such a device does not have.
    """
    if ALL in only:
        return tuple(part for part in PARTS if device in part.devices)
    known = {part.name: part for part in PARTS}
    problems = []
    for name in dict.fromkeys(only):
        if name not in known:
            problems.append(Problem(where="bench.only", found=f"no part {name!r}", remedy=nearest(name, [*known, ALL])))
        elif device not in known[name].devices:
            found = (
                f"{name} is measured on {' or '.join(known[name].devices)} only, and this machine computes on {device}"
            )
            problems.append(Problem(where="bench.only", found=found, remedy="Leave it out."))
    if problems:
        raise UserError(*problems)
    return tuple(part for part in PARTS if part.name in only)
