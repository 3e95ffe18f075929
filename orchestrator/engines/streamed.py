"""Frozen base in uneven shards, fetched layer by layer just in time; adapters in DistributedDataParallel."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import PreTrainedModel

from orchestrator.collectives.agreement import agree
from orchestrator.engines.ddp import DdpEngine
from orchestrator.engines.live import Named, scales
from orchestrator.errors import Problem, UserError
from orchestrator.weights.cache import BaseCache, cache_key
from orchestrator.weights.checkpoint import open_checkpoint
from orchestrator.weights.cut import Cut, Shares, Tier, cut_by_bytes, resident_layers
from orchestrator.weights.exchange import Team
from orchestrator.weights.gather import Broadcasts, Gather
from orchestrator.weights.layers import bare_model
from orchestrator.weights.layout import BaseLayout
from orchestrator.weights.load import Loaded, Target, load_base
from orchestrator.weights.shards import Shards
from orchestrator.weights.skeleton import BaseSource, build_skeleton
from orchestrator.weights.slots import Pace
from orchestrator.weights.store import Store
from orchestrator.weights.stream import StreamedLayers, stream_loaded

MakeCut = Callable[[BaseLayout], Cut]


def cut_of_shares(shares: Shares, resident_bytes: int = 0) -> MakeCut:
    """Return how to cut a layout once it is known.

    Args:
        shares: bytes (or other weights) by tier, for each rank.
        resident_bytes: room on every rank for layers held whole.
    """

    def cut(layout: BaseLayout) -> Cut:
        return cut_by_bytes(layout, shares, resident_layers(layout, resident_bytes))

    return cut


class StreamedEngine(DdpEngine):
    """A rank keeps its share of the layers' frozen bytes and a window of whole layers; the rest as with `ddp`."""

    name = "streamed"

    def __init__(
        self,
        cut: MakeCut,
        window: int,
        *,
        device: torch.device,
        group: dist.ProcessGroup | None = None,
        gather: Gather | None = None,
        pace: Pace | None = None,
        nvme_folder: Path | None = None,
    ) -> None:
        """Take what the plan says.

        Args:
            cut: how the layers' bytes are cut; the same on all ranks.
            window: layers on the device at once, the one at work included.
            device: where this rank computes.
            group: of the ranks that share one copy of the layers, used for nothing else; None for one rank.
            gather: how they bring their pieces together; None for a broadcast of each.
            pace: what may be fetched while a layer computes; None for all that the window holds.
            nvme_folder: for pieces that wait on a drive.
        """
        self._make_cut, self._window, self._device, self._group = cut, window, device, group
        self._pace, self._nvme_folder = pace or Pace(), nvme_folder
        self._gather = gather if gather is not None or group is None else Broadcasts(group)
        self._streamed: StreamedLayers | None = None
        self._told_seconds = 0.0

    def attach(self, model: nn.Module) -> StreamedLayers:
        """Take a model that was loaded whole apart; collective.

        Raises:
            UserError: a model that cannot be streamed, or ranks that were told different things.
        """
        _check_order(model)
        streamed = stream_loaded(model, self.make_store)
        self.adopt(model, streamed)
        return streamed

    def adopt(self, model: nn.Module, streamed: StreamedLayers) -> None:
        """Take a model whose layers stream already."""
        self._streamed = streamed
        _keep_generation_in_step(bare_model(model))

    def load(
        self, source: BaseSource, team: Team, say: Callable[[str], None], cache_root: Path | None = None
    ) -> tuple[PreTrainedModel, Loaded]:
        """Load a base straight into its shards; collective. Adapters come afterwards (see `measure_magnitudes`).

        Args:
            source: which base, and how it is held.
            team: the ranks that read it together: those of one host.
            say: told the progress, on the team's first rank.
            cache_root: folder of the packed layers of all bases, kept between runs; None does without.

        Raises:
            UserError: a base that cannot be streamed or read, or ranks that were told different things.
            RunFailed: another rank failed.
        """
        checkpoint = open_checkpoint(source.folder)
        skeleton = build_skeleton(source, checkpoint)
        _check_order(skeleton.model)
        store = self.make_store(skeleton.layout)
        cache = None
        if cache_root is not None:
            key, folder = cache_key(skeleton, checkpoint, self._device), str(source.folder)
            cache = BaseCache(root=cache_root, key=key, model=folder, fingerprint=checkpoint.fingerprint)
        target = Target(
            skeleton=skeleton,
            checkpoint=checkpoint,
            cut=store.cut,
            team=team,
            put=store.write,
            device=self._device,
        )
        loaded = load_base(target, say, cache)
        self.adopt(skeleton.model, StreamedLayers(skeleton.layers, skeleton.places, store))
        return skeleton.model, loaded

    def make_store(self, layout: BaseLayout) -> Store:
        """Allocate for a layout, once all ranks of the group have found the same; collective."""
        cut = self._make_cut(layout)
        rank = 0 if self._group is None else dist.get_rank(self._group)
        if self._group is not None:
            pace = (self._pace.chunk_bytes, self._pace.gather_window_bytes)
            told = (layout.fingerprint, cut.fingerprint, self._window, pace)
            _agree(self._group, cut.world_size, hashlib.sha256(repr(told).encode()).digest(), self._device)
        shards = Shards(cut, rank, self._device, self._nvme_folder)
        return Store(layout, cut, shards, self._gather, window=self._window, pace=self._pace)

    def prepare(self, model: nn.Module) -> None:
        """Keep DDP away from the base, and stream it from here on if that was not done on load."""
        super().prepare(model)
        if self._streamed is None:
            self.attach(model)

    def live_tensors(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Named:
        """Return shard, window and what of the base is whole; then as `ddp`."""
        streamed = self.attached
        named = super().live_tensors(model, optimizer)
        for name in ("base_packed", "absmax", "base_unquantised"):
            named.pop(name)
        store = streamed.store
        return {
            "window": list(store.slots),
            "base_shard": [store.shards.memory[Tier.device], *store.residents],
            "base_unquantised": _resident_tensors(model, streamed),
            **named,
        }

    def live_bytes(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
        """Return the bytes that live on this rank's device now, by term, after a look at the views themselves."""
        self.attached.check()
        return super().live_bytes(model, optimizer)

    def tier_bytes(self) -> dict[Tier, int]:
        """Bytes of this rank's pieces by tier."""
        return dict(self.attached.store.shards.nbytes)

    @property
    def attached(self) -> StreamedLayers:
        """The layers that stream.

        Raises:
            RuntimeError: the engine has no model yet.
        """
        if self._streamed is None:
            raise RuntimeError("the streamed engine has no model yet")
        return self._streamed

    def exposed_seconds(self) -> float:
        """Seconds that computing waited for layers since the last call; on a GPU this waits for it: once a step."""
        waited = self.attached.store.read_stats().wait_seconds
        found, self._told_seconds = waited - self._told_seconds, waited
        return found

    def set_window(self, window: int) -> None:
        """Keep another number of layers ready, between steps and on all ranks alike."""
        self.attached.resize(window)

    def close(self) -> None:
        """End threads, files and hooks."""
        if self._streamed is not None:
            self._streamed.close()


def _agree(group: dist.ProcessGroup, world_size: int, fingerprint: bytes, device: torch.device) -> None:
    """Make sure that all ranks gather alike, before they do.

    Raises:
        UserError: on all ranks, if one of them was told something else.
    """
    size, fault = dist.get_world_size(group), ""
    if world_size != size:
        fault = f"a cut for {world_size} ranks in a group of {size}"
    try:
        agree(group, f"cut over {world_size} ranks", fingerprint, device=device, fault=fault)
    except UserError as error:
        remedy = "Start all ranks with the same plan, the same model files and the same versions"
        found = (
            problem.found if fault else problem.found.replace("ones", "cuts, windows or layers", 1)
            for problem in error.problems
        )
        raise UserError(*(Problem(where="engine=streamed", found=one, remedy=remedy) for one in found)) from error


def _resident_tensors(model: nn.Module, streamed: StreamedLayers) -> list[torch.Tensor]:
    """The frozen tensors outside the store: embeddings, final norm, head, code books."""
    bound = {id(place.parameter) for own in streamed.places for place in own}
    found: list[torch.Tensor] = []
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if not parameter.requires_grad and id(parameter) not in bound:
                found += [parameter.data, *scales(module, parameter)]
            elif id(parameter) in bound:
                found += _code_books(parameter)
    return found


def _code_books(parameter: Any) -> list[torch.Tensor]:  # noqa: ANN401 - what bitsandbytes adds to a Parameter
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return []
    return [state.code, *([state.state2.code] if state.nested else [])]


def _check_order(model: nn.Module) -> None:
    """Refuse models whose ranks would use layers in different orders.

    Raises:
        UserError: the model drops layers at random.
    """
    config: Any = getattr(bare_model(model), "config", None)
    dropped = getattr(config, "layerdrop", 0.0) or 0.0
    if dropped > 0:
        found = f"the model drops layers at random (layerdrop {dropped})"
        remedy = "Set layerdrop to 0 in its configuration, or use engine=ddp"
        raise UserError(Problem(where="engine=streamed", found=found, remedy=remedy))


def _keep_generation_in_step(model: nn.Module) -> None:
    """Let every rank decode until the last one is done: a rank that stopped early would be missing in gathers."""
    generate = getattr(model, "generate", None)
    if generate is not None and dist.is_initialized() and dist.get_world_size() > 1:
        model.generate = partial(generate, synced_gpus=True)  # type: ignore[assignment] # a method, to mypy
