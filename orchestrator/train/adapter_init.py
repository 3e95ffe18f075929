"""What adapters start from besides chance: PiSSA and LoftQ, from the base's weights in full precision.

Both take the weights from the model's own files, whatever the base is stored as on the device:

- LoftQ: the base stays Q(W), and s B A is the best rank-r approximation of the error W - Q(W). This is one step of
  LoftQ (Li et al. 2023, arXiv 2310.08659), with the scale s of the adapter divided out.
- PiSSA: s B A is the best rank-r approximation of W itself, and the base becomes Q(W - s B A), made in 32 bits and
  packed again (Meng et al. 2024, arXiv 2404.02948). The exported adapter is the difference to what it began with: plain
  LoRA of twice the rank on the base as it is in its files.

The main rank computes the matrices, all ranks get them, and a file beside the run keeps them: a run that goes on has
the very same base and the same zero for its export.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import bitsandbytes as bnb
import torch
from bitsandbytes.functional import dequantize_4bit
from peft.peft_model import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from orchestrator.config import AdapterInit, RunConfig
from orchestrator.errors import Problem, UserError

INITIAL_FILE: Final = "adapter_initial.safetensors"
_PREFIX: Final = "base_model.model."
_ADAPTER: Final = "default"
_WHOLE_SVD: Final = 1024  # narrower side up to which all singular values are computed
_SPARE: Final = 16  # singular vectors beyond the rank that the randomised method looks for
_ITERATIONS: Final = 8

Initial = dict[str, torch.Tensor]
Visit = Callable[[Callable[[nn.Module], None]], None]


class FullWeights:
    """Weights of a model's files by name, read one at a time."""

    def __init__(self, folder: Path, prefix: str) -> None:
        """Look at the files' headers.

        Args:
            folder: of the model.
            prefix: of its decoder's names (`model`), which some files leave out.
        """
        self._prefix = f"{prefix}."
        self._files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as opened:
                self._files.update(dict.fromkeys(opened.keys(), path))

    def get(self, module: str) -> torch.Tensor:
        """Return a module's weight as it is stored.

        Raises:
            UserError: it is not there by this name, or packed already.
        """
        name = f"{module}.weight"
        known = next((x for x in (name, name.removeprefix(self._prefix)) if x in self._files), None)
        if known is None:
            found = f"the model's files hold no {name}: this family's are named or cut otherwise"
            raise UserError(Problem(where="adapter.init", found=found, remedy="Use adapter.init=default or eva."))
        with safe_open(self._files[known], framework="pt") as opened:
            weight: torch.Tensor = opened.get_tensor(known)
        if not weight.is_floating_point():
            found = f"{known} is packed in the model's files, and its full precision is needed"
            raise UserError(Problem(where="adapter.init", found=found, remedy="Give the model that was not quantised."))
        return weight


def adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the adapted linear modules by their names in the base."""
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer) and _ADAPTER in module.lora_A:
            yield name.removeprefix(_PREFIX), module


def best_product(matrix: torch.Tensor, rank: int, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A (rank, in) and B (out, rank) with `scaling` B A the best approximation of a matrix (out, in).

    Singular values are shared evenly between the two. Wide matrices take the randomised method of torch.
    """
    if min(matrix.shape) <= _WHOLE_SVD:
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    else:
        u, s, v = torch.svd_lowrank(matrix, q=min(rank + _SPARE, *matrix.shape), niter=_ITERATIONS)
        vh = v.T
    root = (s[:rank] / scaling).sqrt()
    a, b = root[:, None] * vh[:rank], u[:, :rank] * root
    missing = rank - len(root)
    if missing > 0:  # a rank above the matrix' own
        a, b = nn.functional.pad(a, (0, 0, 0, missing)), nn.functional.pad(b, (0, missing))
    return a.contiguous(), b.contiguous()


def unpacked(module: Any) -> torch.Tensor:  # noqa: ANN401 - any of PEFT's layers
    """A module's frozen weight in fp32, as its files orient it."""
    weight = module.get_base_layer().weight
    state = getattr(weight, "quant_state", None)
    held: torch.Tensor = weight if state is None else dequantize_4bit(weight.data, state)
    return held.to(torch.float32)


def start_matrices(
    model: PeftModel, init: AdapterInit, weights: FullWeights, seed: int, visit: Visit | None
) -> Initial:
    """Compute A and B of every adapter; frozen tensors are read only while `visit` shows them, where there is one."""
    names = {id(module): name for name, module in adapted(model)}
    found: Initial = {}

    def act(part: nn.Module) -> None:
        for module in part.modules():
            name = names.pop(id(module), None)
            if name is not None:
                found.update(_start_of(name, module, init, weights))

    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        if visit is not None:
            visit(act)
        act(model)
    return found


def _start_of(name: str, module: Any, init: AdapterInit, weights: FullWeights) -> Initial:  # noqa: ANN401
    held = module.lora_A[_ADAPTER].weight
    matrix = weights.get(name).to(held.device, torch.float32)
    if init is AdapterInit.loftq:
        matrix = matrix - unpacked(module).view_as(matrix)
    if module.fan_in_fan_out:
        matrix = matrix.T
    a, b = best_product(matrix, module.r[_ADAPTER], module.scaling[_ADAPTER])
    return {f"{name}.lora_A": a.cpu(), f"{name}.lora_B": b.cpu()}


def put(model: PeftModel, initial: Initial) -> None:
    """Write matrices into the adapters."""
    with torch.no_grad():
        for name, module in adapted(model):
            module.lora_A[_ADAPTER].weight.copy_(initial[f"{name}.lora_A"])
            module.lora_B[_ADAPTER].weight.copy_(initial[f"{name}.lora_B"])


def leave_rest(model: PeftModel, initial: Initial, weights: FullWeights) -> None:
    """Make the base what PiSSA's adapters leave of it: W - s B A in 32 bits, stored again as the base was."""
    with torch.no_grad():
        for name, module in adapted(model):
            layer = module.get_base_layer()
            device = layer.weight.device
            stored = weights.get(name)
            product = initial[f"{name}.lora_B"].to(device) @ initial[f"{name}.lora_A"].to(device)
            product *= module.scaling[_ADAPTER]
            rest = stored.to(device, torch.float32) - (product.T if module.fan_in_fan_out else product)
            layer.weight = _stored_like(layer, rest)


def _stored_like(layer: nn.Module, rest: torch.Tensor) -> nn.Parameter:
    """A weight packed as the layer's own is."""
    weight: Any = layer.weight
    if isinstance(weight, bnb.nn.Params4bit):
        fresh = bnb.nn.Params4bit(
            rest.to(weight.quant_state.dtype).cpu(),
            requires_grad=False,
            compress_statistics=weight.compress_statistics,
            quant_type=weight.quant_type,
            quant_storage=weight.quant_storage,
            blocksize=weight.blocksize,
            module=layer,
        )
        made: nn.Parameter = fresh.to(weight.device)
        return made
    if isinstance(weight, bnb.nn.Int8Params):
        packed: nn.Parameter = bnb.nn.Int8Params(rest.half().cpu(), requires_grad=False).to(weight.device)
        return packed
    return nn.Parameter(rest.to(weight.dtype), requires_grad=False)


def start_key(config: RunConfig) -> str:
    """What adapters start from depends on this: of two starts in one folder, the second may have asked for another."""
    adapter, base, data = config.adapter, config.base, config.data
    names = (config.model.path, config.model.revision, data.path, data.sources, config.seed)
    ranks = (adapter.rank, adapter.alpha, adapter.targets, adapter.rank_pattern, adapter.alpha_pattern, adapter.rho)
    kinds = (adapter.kind, adapter.init, adapter.rslora, adapter.dora)
    return hashlib.sha256(repr((names, ranks, kinds, base)).encode()).hexdigest()


def kept_or_none(folder: Path, key: str) -> Initial | None:
    """The matrices that an earlier attempt of the run has kept.

    Those of another key were left by a start that came to nothing; with a checkpoint beside them they are the run's.
    """
    path = folder / INITIAL_FILE
    if not path.is_file():
        return None
    with safe_open(path, framework="pt") as file:
        is_own = (file.metadata() or {}).get("key") == key
    return load_file(path) if is_own or any((folder / "checkpoints").glob("step-*")) else None


def keep(folder: Path, initial: Initial, key: str) -> None:
    """Keep the matrices beside the run: under another name first, so that a file that is there is whole."""
    path = folder / INITIAL_FILE
    part = path.with_suffix(".part")
    save_file(initial, part, metadata={"key": key})
    part.rename(path)
