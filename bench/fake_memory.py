"""The fast memory formula against the real model on tensors without storage: peak bytes of one training step.

    python bench/fake_memory.py [--quick | --windows | --half] [--layers N] [--stack trl|hf_plain] [--show] [MODEL...]

The second estimate runs transformers' own modules with PEFT's adapters and bitsandbytes' layers on fake tensors
(`orchestrator.simulate`), forward, backward and update, and counts live storages. Neither weights nor a GPU are
needed. `--windows` tries rows below, at and above the sliding window of some models, `--half` recomputes half of the
layers. `--layers` cuts the models, `--show` lists what is live at the peak.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import Any

from fake_models import config_of

from orchestrator.config import AdapterConfig, Checkpointing, Engine, Optimizer, Quant
from orchestrator.errors import UserError
from orchestrator.estimate.layers import Input, input_of
from orchestrator.estimate.masks import EAGER_BY_DEFAULT
from orchestrator.estimate.memory import estimate_memory
from orchestrator.estimate.setting import Machine, Setting
from orchestrator.estimate.values import PhaseMemory
from orchestrator.simulate.case import Case
from orchestrator.simulate.step import Simulated, simulate
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.batch import BatchShape
from orchestrator.workload.families import shape_from_config
from topology.units import GIB, MIB

MODELS = (
    "llama-2-7b",
    "llama-3-8b",
    "mistral-7b-v0.3",
    "qwen2.5-7b",
    "qwen3-8b",
    "gemma-7b",
    "gemma-2-9b",
    "phi-3-mini",
    "phi-2",
    "falcon-7b",
    "pythia-6.9b",
    "opt-6.7b",
    "olmo-2-7b",
    "smollm3-3b",
    "tiny-llama",
    "gpt-j-6b",
    "phi-4",
    "mixtral-8x7b",
    "qwen1.5-moe-a2.7b",
    "qwen3-30b-a3b",
    "olmoe-1b-7b",
    "mistral-7b",
    "gemma-3-1b",
    "starcoder2-7b",
    "olmo-7b",
    "olmo-3-7b",
    "glm-4-9b",
    "command-r7b",
    "stablelm-2-1.6b",
    "granite-3-8b",
    "granite-4.0-micro",
    "exaone-4-32b",
    "ministral-8b",
    "seed-oss-36b",
    "granite-3-1b-moe",
    "falcon-40b",
    "gpt2",
)
HALVED = ("llama-3-8b", "gemma-2-9b", "qwen3-30b-a3b", "phi-2", "falcon-7b")
WINDOWED = ("mistral-7b", "phi-3-mini", "gemma-3-1b", "starcoder2-7b", "olmo-3-7b")
LONG = 1024  # tokens of a window from which activations are checkpointed
STACKS = ("trl", "hf_plain")
LIMIT = 0.03
GPU = Machine(
    is_gpu=True,
    memory_bytes=80 * GIB,
    flops_per_second=3e14,
    memory_bytes_per_second=2e12,
    cores=1.0,
    link_bytes_per_second=1e10,
    gather_bytes_per_second=1e10,
    link_alpha_seconds=3e-5,
    h2d_bytes_per_second=1e10,
    known=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What varies besides the model."""

    micro: int
    tokens: int
    rank: int
    checkpointing: str
    accumulation: int
    masked: bool = False
    attention_only: bool = False
    half: bool = False

    def __str__(self) -> str:
        """Short, for a table."""
        mask = " masked" if self.masked else ""
        where = " attention" if self.attention_only else ""
        half = " of half" if self.half else ""
        return f"{self.micro}x{self.tokens}{mask} r{self.rank}{where} {self.checkpointing}{half} /{self.accumulation}"


SHAPES = (
    Shape(micro=1, tokens=4096, rank=16, checkpointing="full", accumulation=4),
    Shape(micro=4, tokens=1024, rank=64, checkpointing="none", accumulation=1),
    Shape(micro=2, tokens=2048, rank=8, checkpointing="selective", accumulation=2, masked=True),
    Shape(micro=4, tokens=512, rank=32, checkpointing="none", accumulation=2, attention_only=True),
)
HALF_SHAPES = (
    Shape(micro=4, tokens=1024, rank=64, checkpointing="full", accumulation=1, half=True),
    Shape(micro=2, tokens=2048, rank=8, checkpointing="selective", accumulation=2, half=True),
    Shape(micro=2, tokens=1024, rank=16, checkpointing="full", accumulation=4, half=True, masked=True),
)
QUICK = (
    ("llama-3-8b", SHAPES[0], "trl"),
    ("qwen2.5-7b", SHAPES[1], "trl"),
    ("phi-2", SHAPES[2], "trl"),
    ("llama-2-7b", SHAPES[1], "hf_plain"),
    ("qwen3-8b", SHAPES[0], "hf_plain"),
    ("llama-3-8b", HALF_SHAPES[0], "trl"),
    ("gemma-2-9b", HALF_SHAPES[1], "hf_plain"),
    ("qwen3-30b-a3b", HALF_SHAPES[2], "trl"),
)
QUICK_LAYERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Both estimates of one case, in bytes."""

    model: str
    shape: Shape
    stack: str
    simulated: Simulated
    formula: PhaseMemory

    @property
    def error(self) -> float:
        """Formula against simulation; above 0: the formula says more."""
        return self.formula.allocated_bytes / self.simulated.peak_bytes - 1


def compare(name: str, shape: Shape, stack: str, layers: int | None = None) -> Compared:
    """Estimate one case both ways."""
    config = config_of(name)
    adapters = "bf16" if stack == "trl" else "fp32"
    attention = "eager" if config["model_type"] in EAGER_BY_DEFAULT else "sdpa"
    case = Case(
        model=config,
        micro=shape.micro,
        tokens=shape.tokens,
        rank=shape.rank,
        checkpointing=shape.checkpointing,
        accumulation=shape.accumulation,
        masked=shape.masked,
        stack=stack,
        adapter_dtype=adapters,
        attention=attention,
        layers=layers,
        recomputed=_half(config, layers) if shape.half else None,
        targets=_attention(name, config) if shape.attention_only else ("all-linear",),
    )
    formula = estimate_memory(setting_of(name, case)).train
    return Compared(model=name, shape=shape, stack=stack, simulated=simulate(case), formula=formula)


def _half(config: dict[str, Any], layers: int | None) -> int:
    """Half of the layers that are simulated."""
    return (layers or int(config[_layers_key(config)])) // 2


def _layers_key(config: dict[str, Any]) -> str:
    known = ("num_hidden_layers", "n_layer", "n_layers")
    return next((key for key in known if key in config), known[0])


def _attention(name: str, config: dict[str, Any]) -> tuple[str, ...]:
    """Linear modules of attention, as adapters are aimed at them."""
    setting = setting_of(name, Case(model=config, micro=1, tokens=8, rank=8))
    linears = setting.model.linears
    return tuple(
        x.leaf for x in linears if input_of(x.name, x.in_features, setting) in (Input.attention, Input.context)
    )


def window_shapes(name: str) -> tuple[Shape, ...]:
    """Rows shorter than the model's window, as long, and longer."""
    window = shape_from_config(name, config_of(name)).sliding_window
    lengths = (-(-window // 2), window, 2 * window)
    kept = ("none", "full", "full") if window > LONG else ("none", "none", "none")
    return tuple(
        Shape(micro=1 if window > LONG else 4, tokens=length, rank=16, checkpointing=how, accumulation=1)
        for length, how in zip(lengths, kept, strict=True)
    )


def setting_of(name: str, case: Case) -> Setting:
    """What the formula is asked: the same case."""
    config: dict[str, Any] = dict(case.model)
    if case.layers is not None:
        config[_layers_key(config)] = case.layers
    model = shape_from_config(name, config)
    return Setting(
        model=model,
        adapter=adapter_shape(model, AdapterConfig(rank=case.rank, targets=case.targets, dropout=case.dropout)),
        batch=BatchShape(
            real_tokens_per_row=float(case.tokens), longest_tokens=case.tokens, fixed=True, padded=case.masked
        ),
        quant=Quant(case.quant),
        double_quant=case.double_quant,
        engine=Engine.ddp,
        world_size=1,
        micro=case.micro,
        rows=case.micro * case.accumulation,
        accumulation=case.accumulation,
        compute_dtype=case.compute_dtype,
        load_dtype=case.load_dtype,
        adapter_dtype=case.adapter_dtype,
        checkpointing=Checkpointing(case.checkpointing),
        recomputed_layers=case.recomputed,
        optimizer=Optimizer.adamw,
        allocator="",
        eager_attention=case.attention == "eager",
        zero3=None,
        machine=GPU,
        stack=case.stack,
    )


def line(compared: Compared) -> str:
    """A row of the table."""
    simulated, formula = compared.simulated.peak_bytes / GIB, compared.formula.allocated_bytes / GIB
    flag = "" if abs(compared.error) <= LIMIT else "  <-- "
    return (
        f"{compared.model:14} {compared.shape!s:36} {compared.stack:9} {simulated:8.2f} {formula:8.2f} "
        f"{compared.error:+7.1%}{flag}"
    )


def show(compared: Compared) -> None:
    """Both sides of a case in detail, in MiB."""
    simulated = compared.simulated
    print(f"    state {simulated.state_bytes / MIB:.0f}, passes {simulated.pass_bytes / MIB:.0f}, ", end="")
    print(f"optimizer {simulated.optimizer_bytes / MIB:.0f} MiB")
    for x in simulated.at_peak[:30]:
        print(f"    {x.bytes / MIB:9.1f}  {x.count:4} {x.operator:50} {x.phase:10} {x.shape} {x.dtype}")
    for term in compared.formula.terms:
        print(f"    {term.bytes / MIB:9.1f}  {term.name}")


def main() -> int:
    """Print the table; 1 when a case differs by more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--stack", choices=STACKS)
    parser.add_argument("--shape", type=int, action="append", choices=range(len(SHAPES)))
    parser.add_argument("--windows", action="store_true")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("models", nargs="*")
    arguments = parser.parse_args()
    stacks = (arguments.stack,) if arguments.stack else STACKS
    shapes = SHAPES if arguments.shape is None else tuple(SHAPES[at] for at in arguments.shape)
    cases = [(model, shape, stack) for model in arguments.models or MODELS for shape in shapes for stack in stacks]
    if arguments.windows:
        cases = [
            (x, shape, stack) for x in arguments.models or WINDOWED for shape in window_shapes(x) for stack in stacks
        ]
    if arguments.half:
        cases = [(x, shape, stack) for x in arguments.models or HALVED for shape in HALF_SHAPES for stack in stacks]
    layers = arguments.layers
    if arguments.quick:
        cases, layers = list(QUICK), QUICK_LAYERS
    head = f"{'model':14} {'micro x tokens, rank, checkpointing':36} {'stack':9}"
    print(f"{head} {'fake GiB':>8} {'formula':>8} {'error':>7}")
    start, errors = time.perf_counter(), []
    for case in cases:
        try:
            compared = compare(*case, layers)
        except (RuntimeError, UserError, AttributeError, TypeError, ValueError) as error:
            print(f"{case[0]:14} {case[1]!s:36} {case[2]:9} {type(error).__name__}: {str(error)[:90]}")
            continue
        errors.append(abs(compared.error))
        print(line(compared), flush=True)
        if arguments.show:
            show(compared)
    inside = sum(error <= LIMIT for error in errors)
    print(f"{inside} of {len(errors)} within {LIMIT:.0%}, largest {max(errors):.1%}, ", end="")
    print(f"{time.perf_counter() - start:.0f} s")
    return 0 if inside == len(errors) else 1


if __name__ == "__main__":
    sys.exit(main())
