"""A base with its adapters in it, written as safetensors: planned first, then made one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.core_model_loading import revert_weight_conversion

from orchestrator.errors import Problem, UserError
from orchestrator.merge.base import Base
from orchestrator.merge.finite import FLOATS, checked
from orchestrator.merge.layers import AdaptedLayers
from orchestrator.merge.shards import PORTION, Out, cut, write_shards
from orchestrator.weights.checkpoint import StoredTensor
from orchestrator.weights.jobs import STORED_TYPES, Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Where a written tensor comes from.

    Attributes:
        job: makes it; None for a stored tensor that is only copied.
        stored: the tensor that is copied.
        parameter: of the model, where the job makes one parameter under its stored name; empty where transformers
            takes the result apart again.
    """

    job: Job | None = None
    stored: StoredTensor | None = None
    parameter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What was written.

    Attributes:
        files: names, in order.
        nbytes: of all tensors.
        tensors: how many.
        changed: parameters that adapters changed.
        is_untied: input and output embeddings were one tensor, and are two now.
    """

    files: tuple[str, ...]
    nbytes: int
    tensors: int
    changed: int
    is_untied: bool


class Merge:
    """Writes one merged model."""

    def __init__(self, base: Base, layers: AdaptedLayers) -> None:
        """Plan what is written, in the base's own order and under its own names."""
        self._base, self._layers = base, layers
        self._made: tuple[Job, dict[str, torch.Tensor]] | None = None
        tied = dict(base.model.all_tied_weights_keys)
        touched = layers.names
        groups = [{target, source} for target, source in tied.items()]
        self._untied = {name for group in groups if group & touched for name in group}
        self.outs: list[Out] = []
        self._recipes: dict[str, Recipe] = {}
        for job in base.plan.jobs:
            self._add_job(job, touched | base.quantised)
        stored = {x.stored.name for job in base.plan.jobs for x in job.inputs}
        for name, tensor in base.checkpoint.tensors.items():
            if name not in stored:  # what this version of transformers has no use for
                self._add(name, STORED_TYPES[tensor.dtype], tensor.shape, Recipe(stored=tensor))
        made = {name for job in base.plan.jobs for name in job.targets}
        lost = sorted(touched - made - self._untied)
        if lost:
            found = f"the base stores no weight for the adapters on {', '.join(lost[:3])}"
            raise UserError(Problem(where="adapter", found=found, remedy="Use export.format=peft."))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(out.nbytes for out in self.outs)

    @property
    def is_untied(self) -> bool:
        """Whether tied embeddings are written as two tensors."""
        return bool(self._untied)

    def _add(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], recipe: Recipe) -> None:
        self.outs.append(Out(name=name, dtype=dtype, shape=tuple(shape)))
        self._recipes[name] = recipe

    def _add_job(self, job: Job, changed: frozenset[str]) -> None:
        if job.is_plain:
            x = job.inputs[0]
            names = {job.first}
            if job.first in self._untied:
                names |= self._untied & set(_tied_with(self._base.model.all_tied_weights_keys, job.first))
                names -= {n for j in self._base.plan.jobs for n in j.targets if n != job.first}
            for name in sorted(names, key=lambda n: n != job.first):
                recipe = Recipe(job=job, parameter=name) if names & changed else Recipe(stored=x.stored)
                stored_name = x.stored.name if name == job.first else name
                self._add(stored_name, _written(x.stored, x.result_type), x.stored.shape, recipe)
            return
        is_changed = bool(changed.intersection(job.targets))
        for x in job.inputs:
            recipe = Recipe(job=job) if is_changed else Recipe(stored=x.stored)
            self._add(x.stored.name, _written(x.stored, x.result_type), x.stored.shape, recipe)

    def write(self, folder: Path, limit_bytes: int, say: Callable[[str], None]) -> Merged:
        """Write all shards.

        Raises:
            UserError: files that cannot be read, or values that the type cannot hold.
            OSError: the disk refuses.
        """
        written = write_shards(folder, cut(self.outs, limit_bytes), self._fill, say)
        if self._layers.unused:
            raise RuntimeError(f"adapters were left out: {sorted(self._layers.unused)[:3]}")
        return Merged(
            files=tuple(path.name for path in written),
            nbytes=self.nbytes,
            tensors=len(self.outs),
            changed=len(self._layers.names),
            is_untied=self.is_untied,
        )

    def _fill(self, out: Out) -> Iterator[torch.Tensor]:
        recipe = self._recipes[out.name]
        if recipe.stored is not None:
            yield from checked(out.name, self._copied(recipe.stored), out.dtype, copies=True)
            return
        if recipe.job is None:
            raise RuntimeError(f"nothing makes {out.name}")
        values = (
            self._parameter(recipe.job, recipe.parameter) if recipe.parameter else self._parts(recipe.job)[out.name]
        )
        if tuple(values.shape) != out.shape:
            raise RuntimeError(f"{out.name} became {tuple(values.shape)} instead of {out.shape}")
        yield from checked(out.name, (values,), out.dtype)

    def _copied(self, stored: StoredTensor) -> Iterator[torch.Tensor]:
        dtype = STORED_TYPES[stored.dtype]
        step = PORTION * dtype.itemsize
        for begin in range(0, stored.nbytes, step):
            memory = torch.empty(min(step, stored.nbytes - begin), dtype=torch.uint8)
            self._base.reader.read_into(stored.file, stored.begin + begin, memory.numpy().data)
            yield memory.view(dtype)

    def _parameter(self, job: Job, name: str) -> torch.Tensor:
        values = self._base.values(job)[job.first]
        return self._layers.merged(name, values) if name in self._layers.names else values

    def _parts(self, job: Job) -> Mapping[str, torch.Tensor]:
        """Stored tensors that make parameters together: made, merged, and taken apart the way transformers saves."""
        if self._made is not None and self._made[0] is job:
            return self._made[1]
        self._made = None  # let go before the next is made
        values = self._base.values(job)
        for name in set(values) & self._layers.names:
            values[name] = self._layers.merged(name, values[name])
        found: dict[str, torch.Tensor] = revert_weight_conversion(self._base.model, values)
        wanted = {x.stored.name: tuple(x.stored.shape) for x in job.inputs}
        if {name: tuple(value.shape) for name, value in found.items()} != wanted:
            told = f"transformers cannot write {job.first} under the names that the base has ({min(wanted)}, ...)"
            raise UserError(Problem(where="export.format=merged", found=told, remedy="Use export.format=peft."))
        self._made = (job, found)
        return found


def _tied_with(tied: Mapping[str, str], name: str) -> list[str]:
    source = tied.get(name, name)
    return [source, *(target for target, of in tied.items() if of == source)]


def _written(stored: StoredTensor, loaded: torch.dtype) -> torch.dtype:
    """Type in which a tensor is written: as transformers would load it, unless it holds no real numbers."""
    own = STORED_TYPES[stored.dtype]
    return loaded if own in FLOATS and loaded in FLOATS else own
