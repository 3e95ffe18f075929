"""Makes a model's decoder layers stream: their frozen tensors become views, their passes ask the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from orchestrator.errors import Problem, RunFailed
from orchestrator.weights.layers import FrozenParameter, decoder_layers, frozen_places, settle_biases
from orchestrator.weights.layout import BaseLayout
from orchestrator.weights.store import Store
from orchestrator.weights.views import bind, declare, hold, pack, strayed

Places = Sequence[Sequence[FrozenParameter]]
_MOST_NAMED = 3  # of what is wrong, in a message


class StreamedLayers:
    """The decoder layers of a model whose frozen bytes a store brings."""

    def __init__(self, layers: nn.ModuleList, places: Places, store: Store) -> None:
        """Bind the layers to the store, which holds (or will be given) their bytes, and watch their passes."""
        self.layers, self.places, self.store = layers, places, store
        self.passes = 0
        self._seen: set[int] = set()
        self._turned: int | None = None  # the layer whose backward pass runs
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self.bind()
        for own in places:
            hold(own)
        for at, layer in enumerate(layers):
            # Before other hooks: whatever they do, the weights are there.
            self._hooks.append(layer.register_forward_pre_hook(partial(self._before, at), prepend=True))
            self._hooks.append(layer.register_forward_hook(partial(self._after, at)))

    def bind(self) -> None:
        """Make the frozen tensors views of where their layers lie."""
        for at, own in enumerate(self.places):
            bind(own, self.store.layout.extents[at], self.store.memory_of(at))

    def resize(self, window: int) -> None:
        """Use another number of slots, between steps and on all ranks alike."""
        if window != self.store.window:
            self.store.resize(window)
            self.bind()

    def _before(self, at: int, layer: nn.Module, _args: object) -> None:
        if _in_backward():
            # A checkpoint recomputes the layer. Where its gradient has come by already, the bytes are here.
            if self._turned != at:
                self._turned = at
                self.store.use(at)
            return
        if at == 0:
            self._begin(has_backward=torch.is_grad_enabled() or layer.training)
        self._seen.add(at)
        self.store.use(at)

    def _begin(self, *, has_backward: bool) -> None:
        self.passes += 1
        self._turned = None
        if self.passes == 2:  # noqa: PLR2004 - whatever breaks views has happened by then
            self.check()
        self.store.begin_pass(backward=has_backward)

    def _after(self, at: int, _layer: nn.Module, _args: object, output: Any) -> None:  # noqa: ANN401
        if _in_backward():
            return
        fired: list[int] = []
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(partial(self._gradient, at, fired))  # type: ignore[no-untyped-call]

    def _gradient(self, at: int, fired: list[int], _gradient: torch.Tensor) -> None:
        """Have a layer for its backward pass: the gradient of its output is whole.

        Autograd runs what was recorded last first, so nothing of the layers behind is left to do.
        """
        if not fired:
            fired.append(at)
            self._turned = at
            self.store.use(at)

    def visit(self, act: Callable[[nn.Module], None]) -> None:
        """Let something see each layer while its bytes are there, outside the passes; collective.

        Args:
            act: given the layers one after the other; it may read frozen tensors, and must keep no view of them.
        """
        self.store.begin_pass(backward=False)
        for at, layer in enumerate(self.layers):
            self.store.use(at)
            act(layer)

    def check(self) -> None:
        """Make sure that the layers still compute with the store's bytes.

        Raises:
            RunFailed: something has copied or replaced frozen tensors, or runs layers without calling them.
        """
        found = [
            f"layer {at} {name}"
            for at, own in enumerate(self.places)
            for name in strayed(own, self.store.layout.extents[at], self.store.memory_of(at))
        ]
        if found:
            what = f"{len(found)} frozen tensors lie elsewhere now ({', '.join(found[:_MOST_NAMED])})"
            remedy = "Find what casts or moves the frozen model after it was attached, or use engine=ddp"
            raise RunFailed(Problem(where="engine=streamed", found=what, remedy=remedy))
        missed = sorted(set(range(len(self.layers))) - self._seen)
        if len(self.layers) - 1 in self._seen and missed:
            remedy = "The model runs layers without calling them: use engine=ddp or engine=zero3"
            raise RunFailed(Problem(where="engine=streamed", found=f"layers {missed} were not seen", remedy=remedy))

    def close(self) -> None:
        """Let the layers go; their frozen tensors mean nothing afterwards."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.store.close()


def stream_loaded(
    model: nn.Module, make_store: Callable[[BaseLayout], Store], *, copy_buffer: torch.device | None = None
) -> StreamedLayers:
    """Take a model that was loaded whole apart: its layers' frozen bytes go to the store, and are let go.

    Args:
        model: with or without adapters; quantised already.
        make_store: from the layout of its layers.
        copy_buffer: where one layer at a time is packed; the store's device by default.

    Raises:
        UserError: the model has no list of decoder layers.
    """
    layers = decoder_layers(model)
    settle_biases(layers)
    places = frozen_places(model, layers)
    layout = BaseLayout(extents=tuple(declare(own) for own in places))
    store = make_store(layout)
    device = store.shards.device if copy_buffer is None else copy_buffer
    packed = torch.empty(max(layout.layer_bytes, default=0), dtype=torch.uint8, device=device)
    for at, (own, extent) in enumerate(zip(places, layout.extents, strict=True)):
        pack(own, extent, packed)
        store.write(at, 0, packed[: extent.nbytes])
        bind(own, extent, store.memory_of(at))  # lets the loaded tensors go before the next layer is packed
    return StreamedLayers(layers, places, store)


def measure_magnitudes(layer: nn.Module) -> None:
    """Give the DoRA adapters of a layer the magnitudes of its frozen weights; for `visit`.

    PEFT does so when it adds adapters, which needs the weights: of layers that stream already it has read what
    happened to lie in their slots.
    """
    for module in layer.modules():
        for name, vector in getattr(module, "lora_magnitude_vector", {}).items():
            adapted: Any = module
            trains = vector.weight.requires_grad
            vector.update_layer(
                base_layer=adapted.get_base_layer(),
                lora_A=adapted.lora_A[name].weight,
                lora_B=adapted.lora_B[name].weight,
                scaling=adapted.scaling[name],
            )
            vector.weight.requires_grad_(trains)


def _in_backward() -> bool:
    return int(torch._C._current_graph_task_id()) != -1  # noqa: SLF001 - as torch's own checkpointing asks


def _tensors(output: Any) -> list[torch.Tensor]:  # noqa: ANN401
    if isinstance(output, torch.Tensor):
        return [output]
    values = output.values() if isinstance(output, Mapping) else output
    return [value for value in values if isinstance(value, torch.Tensor)] if isinstance(values, Sequence) else []
