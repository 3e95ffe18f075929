"""What compressed gradients have not said yet: kept by parameter name, and said later.

The law of an update, over all ranks: the sum of gradient and old residual is P times the decoded mean plus the sum of
the new residuals, but for how fp32 sums round. Residuals hold unscaled fp32 values. A mean is rounded once more to the
type of the gradients, as a dense one is; nothing makes up for that.

Error feedback: Seide et al., Interspeech 2014; Karimireddy et al., arXiv 1901.09847.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from orchestrator.compress.packets import slices
from orchestrator.errors import Problem, UserError
from orchestrator.planner.compression import CHUNK, chunks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Parameters one after the other in rows of chunks, each from the beginning of a row.

    Attributes:
        names: of the parameters; the same on all ranks, in the same order.
        numels: elements of each.
    """

    names: tuple[str, ...]
    numels: tuple[int, ...]

    @property
    def num_chunks(self) -> int:
        """Rows of all parameters."""
        return sum(map(chunks_of, self.numels))

    @property
    def is_whole(self) -> bool:
        """Whether every parameter fills its rows, so that rows are what a flat bucket holds."""
        return all(numel % CHUNK == 0 for numel in self.numels)

    def views(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Flat view of each parameter's elements in `rows` [num_chunks, CHUNK], without the padding."""
        places = slices([chunks_of(numel) for numel in self.numels])
        return [rows[place].view(-1)[:numel] for place, numel in zip(places, self.numels, strict=True)]

    def rows(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Copy the parameters' elements into rows, padded with zeros."""
        made = torch.zeros((self.num_chunks, CHUNK), dtype=dtype, device=device)
        for view, tensor in zip(self.views(made), tensors, strict=True):
            view.copy_(tensor.reshape(-1))
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one exchange reads and writes.

    Attributes:
        layout: whose rows they are.
        gradients: [num_chunks, CHUNK] fp32, bf16 or fp16; may be `out`.
        base: the residual of the own rows, fp32 [own rows, CHUNK].
        candidate: memory like it, for the next one.
        out: memory like `gradients`, for their mean.
        scale: of the loss.
    """

    layout: Layout
    gradients: torch.Tensor
    base: torch.Tensor
    candidate: torch.Tensor
    out: torch.Tensor
    scale: float


class Reducer(Protocol):
    """Sums gradients over the ranks, and keeps what it did not say; see `exchange`."""

    def own(self, num_chunks: int) -> slice:
        """Rows for which this rank keeps a residual."""
        ...

    def adopt(self, whole: torch.Tensor) -> torch.Tensor:
        """Own rows of a residual, from what each rank has of all rows [num_chunks, CHUNK]; all ranks call this."""
        ...

    def reduce(self, step: Step) -> torch.Tensor:
        """Write the mean over the ranks to `out`, and the new residual of the own rows to `candidate`.

        Returns:
            Whether a gradient of any rank was not finite, or the mean is too large for its type: then `out` and
            `candidate` mean nothing. The same on all ranks; on CUDA no host need wait for it.
        """
        ...


class OwnRows:
    """The part of a `Reducer` where each rank keeps what it did not say itself."""

    def own(self, num_chunks: int) -> slice:
        """All rows."""
        return slice(0, num_chunks)

    def adopt(self, whole: torch.Tensor) -> torch.Tensor:
        """All rows."""
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Residual of some parameters.

    Attributes:
        layout: whose.
        base: fp32 [own rows, CHUNK].
        candidate: memory like it, for the next one: a step that turns out not to be finite changes nothing.
    """

    layout: Layout
    base: torch.Tensor
    candidate: torch.Tensor

    def advanced(self) -> State:
        """The state after a step whose residual is in `candidate`."""
        return State(layout=self.layout, base=self.candidate, candidate=self.base)

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.base.nbytes + self.candidate.nbytes


def init(layout: Layout, device: torch.device, reducer: Reducer) -> State:
    """Begin with nothing left unsaid."""
    own = reducer.own(layout.num_chunks)
    base = torch.zeros((own.stop - own.start, CHUNK), dtype=torch.float32, device=device)
    return State(layout=layout, base=base, candidate=torch.empty_like(base))


def update(
    state: State, gradients: Mapping[str, torch.Tensor], reducer: Reducer, *, scale: float = 1.0
) -> tuple[dict[str, torch.Tensor], State]:
    """Exchange one step's gradients; all ranks call this.

    Args:
        state: after the step before.
        gradients: by name, all of one type: fp32, bf16 or fp16.
        reducer: how.
        scale: of the loss, that gradients are multiplied with.

    Returns:
        The mean over the ranks by name, scaled as the gradients are, and the new state. If a gradient of any rank is
        not finite, the means are not finite on all ranks, and the state stays what it was.

    Raises:
        UserError: gradients of other parameters than the state's.
    """
    layout = state.layout
    given = [gradients.get(name) for name in layout.names]
    tensors = [tensor for tensor in given if tensor is not None]
    if tuple(tensor.numel() for tensor in tensors) != layout.numels or len(gradients) != len(layout.names):
        found = {name: tensor.numel() for name, tensor in gradients.items()}
        remedy = f"give those of {dict(zip(layout.names, layout.numels, strict=True))}"
        raise UserError(Problem(where="gradients", found=f"elements {found}", remedy=remedy))
    if not tensors:
        return {}, state
    rows = layout.rows(tensors, tensors[0].dtype, state.base.device)
    step = Step(layout=layout, gradients=rows, base=state.base, candidate=state.candidate, out=rows, scale=scale)
    bad = reducer.reduce(step)
    if bool(bad):
        rows.fill_(float("nan"))
    shaped = [view.view(like.shape) for view, like in zip(layout.views(rows), tensors, strict=True)]
    decoded = dict(zip(layout.names, shaped, strict=True))
    return decoded, state if bool(bad) else state.advanced()


def state_dict(state: State, reducer: Reducer) -> dict[str, torch.Tensor]:
    """This rank's residual by name, flat; zeros where another rank keeps it. The sum over all ranks is what is owed."""
    rows = state.base.new_zeros((state.layout.num_chunks, CHUNK))
    rows[reducer.own(state.layout.num_chunks)] = state.base
    return {name: view.clone() for name, view in zip(state.layout.names, state.layout.views(rows), strict=True)}


def load(state: State, saved: Mapping[str, torch.Tensor], reducer: Reducer) -> tuple[State, tuple[str, ...]]:
    """Put back what `state_dict` gave, or `mean_of` made of it; all ranks call this.

    Returns:
        The state, and the names that begin anew, because nothing or another number of elements was saved of them.
    """
    layout, whole = state.layout, state.base.new_zeros((state.layout.num_chunks, CHUNK))
    anew = []
    for name, view in zip(layout.names, layout.views(whole), strict=True):
        tensor = saved.get(name)
        if tensor is None or tensor.numel() != view.numel():
            anew.append(name)
        else:
            view.copy_(tensor.reshape(-1))
    own = reducer.adopt(whole)
    return State(layout=layout, base=own, candidate=torch.empty_like(own)), tuple(anew)


def mean_of(states: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """What every rank loads after the number of ranks, or who keeps which rows, has changed.

    What P ranks owe together counts 1/P in the mean gradient. If each of P' new ranks holds the mean of the old ones,
    they owe P' times that, which counts the same.
    """
    names = dict.fromkeys(name for state in states for name in state)
    return {
        name: torch.stack([state[name].reshape(-1) for state in states if name in state]).sum(0) / len(states)
        for name in names
    }
