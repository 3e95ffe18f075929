"""What a calibration says about the ranks of a plan, and which numbers of an estimate come from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.calibration_file import Calibration
from orchestrator.estimate import calibration as c
from orchestrator.estimate import calibration_time as ct
from orchestrator.estimate.setting import FOUR_BIT, CountedStack, Machine, MeasuredRates, Setting
from orchestrator.estimate.time_compute import rates_of, unpacked_per_second
from orchestrator.estimate.time_practice import practice_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RateUsed:
    """A number that an estimate stands on; its source is the day on which it was measured, or the table."""

    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationUse:
    """The calibration of a plan: its file and day, and what the chosen strategy's estimate stands on."""

    file: str
    made: str
    rates: tuple[RateUsed, ...]


def with_calibration(machine: Machine, calibration: Calibration | None, precision: str) -> Machine:
    """Put what was measured on the machine's kind of device in the place of its table's values.

    On CPUs it was measured with some threads a rank; other numbers of threads get their share as the table's do.
    """
    if calibration is None:
        return machine
    if not machine.is_gpu and not calibration.threads:
        return machine
    share = 1.0 if machine.is_gpu else thread_share(machine.cores) / thread_share(calibration.threads)
    found = _Found(calibration, machine.device_name)
    products = tuple((at, rate * share) for at, rate in found.by_width("gemm", precision))
    memory = found.value("memory", "copy")
    rates = MeasuredRates(
        products=products,
        memory_bytes_per_second=_scaled(memory, share),
        elementwise_bytes_per_second=_scaled(found.value("layer", "elementwise"), share),
        unpacked=tuple((at, rate * share) for at, rate in found.by_width("dequantise", f"nf4.{precision}")),
        context_bytes=found.value("context", "context"),
        layer_pass_seconds=found.value("overhead", "layer_pass"),
    )
    h2d = found.value("transfer", "host_to_device")
    if not found.days:
        return machine
    return replace(
        machine,
        measured=replace(rates, days=tuple(found.days.items())),
        memory_bytes_per_second=_peak_memory(machine, rates.memory_bytes_per_second),
        h2d_bytes_per_second=h2d or machine.h2d_bytes_per_second,
        known=machine.known or bool(products),
    )


def thread_share(threads: float) -> float:
    """Cores' worth of work that a rank of so many CPU threads does: they wait for each other at small products."""
    return min(1.0, threads) + max(0.0, threads - 1) * c.EXTRA_THREAD_GAIN_CPU.value


def _peak_memory(machine: Machine, copied: float | None) -> float:
    """The peak of which a copy is the share that estimates take; a CPU's has its own place, and stays."""
    if copied is None or not machine.is_gpu:
        return machine.memory_bytes_per_second
    return copied / ct.MEMORY_SHARE.value


def _scaled(value: float | None, share: float) -> float | None:
    return None if value is None else value * share


class _Found:
    """Looks numbers up, and keeps the day of each section that had one."""

    def __init__(self, calibration: Calibration, device: str) -> None:
        self.calibration = calibration
        self.device = device
        self.days: dict[str, str] = {}

    def value(self, section: str, name: str) -> float | None:
        item = self.calibration.find(section, name, self.device)
        if item is None:
            return None
        self._seen(section)
        return item.value

    def by_width(self, section: str, kind: str) -> list[tuple[int, float]]:
        found = []
        for item in self.calibration.all_of(section, self.device):
            name, _, width = item.name.rpartition(".")
            if name == kind and width.isdecimal() and int(width) > 0:
                found.append((int(width), item.value))
        if found:
            self._seen(section)
        return sorted(found)

    def _seen(self, section: str) -> None:
        known = self.calibration.section(section)
        if known is not None:
            self.days[section] = known.made


def counted_stack(calibration: Calibration | None, name: str) -> CountedStack | None:
    """What was counted of the stack of that name; None where nothing was."""
    section = calibration.section("stack") if calibration else None
    if calibration is None or section is None:
        return None
    logits = calibration.find("stack", f"{name}.logit_bytes")
    layer = calibration.find("stack", f"{name}.layer_factor")
    if logits is None and layer is None:
        return None
    return CountedStack(
        logit_bytes=logits.value if logits else None, layer_factor=layer.value if layer else None, day=section.made
    )


def rates_used(setting: Setting) -> tuple[RateUsed, ...]:
    """The numbers of a setting's estimate that a bench can measure."""
    machine, stack = setting.machine, setting.counted
    rates = [
        _used("products", products_rate(setting), "FLOP/s", machine.source("gemm")),
        _used("memory", _memory(setting), "bytes/s", machine.source("memory")),
    ]
    measured = machine.measured or MeasuredRates()
    if machine.is_gpu:
        rates += [
            _used("host_to_device", machine.h2d_bytes_per_second, "bytes/s", machine.source("transfer")),
            _used("context", measured.context_bytes or c.CUDA_CONTEXT_BYTES.value, "bytes", machine.source("context")),
        ]
    else:
        elementwise = measured.elementwise_bytes_per_second or machine.memory_bytes_per_second
        rates.append(_used("elementwise", elementwise, "bytes/s", machine.source("layer")))
    if setting.quant in FOUR_BIT:
        rates.append(_used("dequantise", _unpacked(setting), "weights/s", machine.source("dequantise")))
    rates.append(_used("layer_pass", _layer_pass(setting), "s", machine.source("overhead")))
    logits = stack.logit_bytes if stack else None
    plain = float(c.PLAIN_LOSS_BYTES if setting.stack == "hf_plain" else c.TILE_LOGIT_BYTES)
    rates.append(_used("logit_bytes", logits or plain, "bytes a logit", _counted(stack, logits)))
    layer = stack.layer_factor if stack else None
    rates.append(_used("layer_factor", layer or 1.0, "of what is counted", _counted(stack, layer)))
    return tuple(rates)


def _used(name: str, value: float, unit: str, source: str) -> RateUsed:
    return RateUsed(name=name, value=value, unit=unit, source=source)


def _counted(stack: CountedStack | None, value: float | None) -> str:
    return f"measured {stack.day}" if stack and value else "table"


def products_rate(setting: Setting) -> float:
    """FLOP/s of linear modules of the model's width."""
    machine = setting.machine
    if machine.is_gpu:
        return rates_of(setting).products
    measured = machine.measured.products_at(setting.model.hidden) if machine.measured else None
    return measured or machine.flops_per_second * c.GEMM_EFFICIENCY_CPU.value


def _memory(setting: Setting) -> float:
    machine = setting.machine
    if machine.is_gpu:
        return rates_of(setting).memory
    measured = machine.measured.memory_bytes_per_second if machine.measured else None
    return measured or machine.memory_bytes_per_second


def _unpacked(setting: Setting) -> float:
    machine = setting.machine
    if machine.is_gpu:
        return unpacked_per_second(setting, practice_of(setting.stack))
    measured = machine.measured.unpacked_at(setting.model.hidden) if machine.measured else None
    return measured or c.DEQUANTISE_WEIGHTS_PER_CORE.value * machine.cores


def _layer_pass(setting: Setting) -> float:
    machine = setting.machine
    if machine.measured and machine.measured.layer_pass_seconds:
        return machine.measured.layer_pass_seconds
    return table_layer_pass(is_gpu=machine.is_gpu)


def table_layer_pass(*, is_gpu: bool) -> float:
    """Seconds of the host for a layer of seven adapted modules and a pass, as the tables have it."""
    if is_gpu:
        return ct.LAYER_HOST_SECONDS.value + 7 * ct.ADAPTER_HOST_SECONDS.value
    return 7 * c.MODULE_PASS_SECONDS_CPU.value
