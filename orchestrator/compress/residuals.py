"""Residuals of a model's parameters in the buckets that DistributedDataParallel forms, and forms anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from orchestrator.compress.error_feedback import Layout, Reducer, State, init, load, state_dict


class Residuals:
    """One state for each bucket; what a bucket that is gone held goes on by name."""

    def __init__(self, reducer: Reducer, device: torch.device) -> None:
        """Begin with nothing left unsaid."""
        self._reducer, self._device = reducer, device
        self._states: dict[tuple[str, ...], State] = {}
        self._waiting: dict[str, torch.Tensor] = {}  # of parameters whose bucket is not known yet

    def of(self, layout: Layout) -> State:
        """The state of a bucket; all ranks ask for the same buckets in the same order."""
        found = self._states.get(layout.names)
        if found is None:
            found = self._states[layout.names] = self._formed(layout)
        return found

    def _formed(self, layout: Layout) -> State:
        names = set(layout.names)
        for other in [other for other in self._states if not names.isdisjoint(other)]:
            self._waiting.update(state_dict(self._states.pop(other), self._reducer))
        fresh = init(layout, self._device, self._reducer)
        known = {name: self._waiting.pop(name) for name in layout.names if name in self._waiting}
        # All ranks know the same names, so that all of them call the collectives of `load`, or none.
        return load(fresh, known, self._reducer)[0] if known else fresh

    def advance(self, names: tuple[str, ...], bad: torch.Tensor) -> None:
        """Go on to the candidate, unless the step was bad. On CUDA the host does not wait to know."""
        state = self._states[names]
        if bad.is_cuda:
            torch.where(bad, state.base, state.candidate, out=state.base)
        elif not bool(bad):
            self._states[names] = state.advanced()

    def dump(self) -> dict[str, torch.Tensor]:
        """This rank's residuals by name, flat fp32 on the host."""
        held = dict(self._waiting)
        for state in self._states.values():
            held.update(state_dict(state, self._reducer))
        return {name: held[name].cpu() for name in sorted(held)}

    def put_back(self, saved: Mapping[str, torch.Tensor], numels: Mapping[str, int]) -> tuple[str, ...]:
        """Take what `dump` or `mean_of` gave; return the names that begin anew: unknown, or of another size."""
        fits = {name: saved[name] for name, numel in numels.items() if name in saved and saved[name].numel() == numel}
        self._states.clear()
        self._waiting = fits
        return tuple(name for name in numels if name not in fits)

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        return sum(state.nbytes for state in self._states.values())


def finite(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Whether none of the tensors, all with elements, holds an infinity or NaN; no host waits for it."""
    return torch.stack([bound.float() for tensor in tensors for bound in torch.aminmax(tensor)]).isfinite().all()
