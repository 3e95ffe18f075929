"""Loads a base: every stored byte is read once by a host, packed once, and goes to the rank that keeps it.

No rank ever holds more than what it keeps and one tensor (as it is stored, and as it is packed): the checkpoint is
read tensor by tensor, in rounds in which every rank of the host has one.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from orchestrator.errors import RunFailed, UserError
from orchestrator.weights.cache import BaseCache
from orchestrator.weights.cache_write import CacheWriter
from orchestrator.weights.checkpoint import ByteReader, Checkpoint
from orchestrator.weights.cut import Cut
from orchestrator.weights.exchange import Team, swap
from orchestrator.weights.jobs import Job, refuse_missing
from orchestrator.weights.layout import Role, aligned
from orchestrator.weights.load_plan import gaps, parcels_of, spans_of
from orchestrator.weights.produce import Made, Producer, Scratch, target_parts
from orchestrator.weights.residents import Residents
from orchestrator.weights.rounds import overlap, share_out
from orchestrator.weights.skeleton import Skeleton

Put = Callable[[int, int, torch.Tensor], None]
Say = Callable[[str], None]
_TOLD_EVERY = 10  # percent
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What loading took on this rank.

    Attributes:
        read_bytes: from the checkpoint.
        cached_bytes: from the cache of packed layers; 0 when they were packed anew.
        scratch_bytes: memory that was needed beside what is kept.
        kept_bytes: of the parameters that every rank holds.
    """

    read_bytes: int
    cached_bytes: int
    scratch_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is loaded, for whom, and where to.

    Attributes:
        skeleton: the model; parameters outside the layers' extents are given their memory here.
        checkpoint: what is stored.
        cut: who keeps which bytes of the layers.
        team: who loads together.
        put: keeps bytes (flat, uint8) that begin at a byte of a layer; they are good until it returns.
        device: where packed bytes are made.
    """

    skeleton: Skeleton
    checkpoint: Checkpoint
    cut: Cut
    team: Team
    put: Put
    device: torch.device


def load_base(target: Target, say: Say, kept: BaseCache | None = None) -> Loaded:
    """Load all weights; collective over the team.

    Args:
        target: what, for whom, and where to.
        say: told the progress, on the team's first rank alone.
        kept: where packed layers are kept between runs; None does without.

    Raises:
        UserError: the weights do not fit the model, or cannot be read.
        RunFailed: another rank failed.
    """
    skeleton, team = target.skeleton, target.team
    refuse_missing(skeleton.model, skeleton.plan.missing)
    tell: Say = say if team.me == 0 else _silent
    if skeleton.plan.unused:
        more = "" if len(skeleton.plan.unused) <= _SHOWN else f" and {len(skeleton.plan.unused) - _SHOWN} more"
        tell(f"the model has no use for {', '.join(skeleton.plan.unused[:_SHOWN])}{more}")
    _fill_gaps(target)
    cached = _from_cache(target, kept, tell) if kept else 0
    jobs = [job for job in skeleton.plan.jobs if not cached or not set(job.targets) <= set(skeleton.names)]
    writer = CacheWriter(kept, skeleton.layout, team, target.device, tell) if kept and not cached else None
    with ByteReader(target.checkpoint.files) as reader:
        loading = _Loading(target, reader, writer, skip_layers=bool(cached))
        loading.run(jobs, tell)
    if writer is not None:
        writer.finish()
    skeleton.model.tie_weights(missing_keys=set(skeleton.plan.missing), recompute_mapping=False)
    return Loaded(
        read_bytes=reader.read_bytes,
        cached_bytes=cached,
        scratch_bytes=loading.scratch_bytes,
        kept_bytes=loading.residents.nbytes,
    )


def _silent(_: str) -> None:
    pass


@cache
def _trimmer() -> Callable[[int], int] | None:
    libc = ctypes.util.find_library("c")
    return getattr(ctypes.CDLL(libc), "malloc_trim", None) if libc else None


def _trim() -> None:
    """Give freed memory back to the system, where the C library keeps it: much is freed here that is not used again."""
    trim = _trimmer()
    if trim is not None:
        trim(0)


def _fill_gaps(target: Target) -> None:
    """Keep zeros where an extent has no tensor, so that equal bases are equal bytes."""
    layout = target.skeleton.layout
    for layer, extent in enumerate(layout.extents):
        for begin, end in gaps(extent):
            for first, last in spans_of(target.cut, layout, target.team.rank, layer):
                part = overlap(begin, end - begin, first, last)
                if part is not None:
                    zeros = torch.zeros(part.nbytes, dtype=torch.uint8, device=target.device)
                    target.put(layer, begin + part.begin, zeros)


def _from_cache(target: Target, kept: BaseCache, tell: Say) -> int:
    """Read this rank's bytes from the cache; 0 if there is none, or what it holds is not good."""
    team, layout = target.team, target.skeleton.layout
    is_there = bool(team.tell(kept.find(layout, tell) if team.me == 0 else False))
    if not is_there:
        return 0
    wanted = [
        (layer, *span) for layer in range(layout.num_layers) for span in spans_of(target.cut, layout, team.rank, layer)
    ]
    fault: UserError | None = None
    read_bytes = 0
    try:
        read_bytes = kept.read(layout, wanted, target.put, target.device)
    except UserError as error:
        fault = error
    try:
        team.agree(fault, target.device)
    except (UserError, RunFailed) as error:
        reason = error.problems[0].found
        tell(f"the packed base in {kept.folder} is made again: {reason}")
        return 0
    tell(f"packed layers were read from {kept.folder}")
    return max(1, read_bytes)  # a rank without a share has read it, too


class _Loading:
    """Rounds of reading and passing on."""

    def __init__(self, target: Target, reader: ByteReader, writer: CacheWriter | None, *, skip_layers: bool) -> None:
        self.target, self.writer, self.skip_layers = target, writer, skip_layers
        self.residents = Residents(target.skeleton, target.device)
        self.producer = Producer(target.skeleton, reader, target.device, self.residents.whole)
        self.incoming = Scratch(target.device)

    @property
    def scratch_bytes(self) -> int:
        """Memory used over and over."""
        return self.producer.raw.nbytes + self.producer.made.nbytes + self.incoming.nbytes

    def run(self, jobs: Sequence[Job], tell: Say) -> None:
        team = self.target.team
        total = sum(job.read_bytes for job in jobs)
        done, told = 0, 0
        for batches in share_out(jobs, team.size):
            made: Made = {}
            fault: Exception | None = None
            try:
                made = self.producer.run(batches[team.me])
                self._keep_in_cache(made)
            except Exception as error:  # noqa: BLE001 - the others must hear of it, whatever it is
                fault = error
            team.agree(fault, self.target.device)
            self._pass_on(batches, made)
            _trim()
            done += sum(job.read_bytes for batch in batches for job in batch)
            if done * 100 >= (told + _TOLD_EVERY) * total:
                told = done * 100 // max(1, total) // _TOLD_EVERY * _TOLD_EVERY
                tell(f"loaded {told}% of {total / 2**30:.2f} GiB")

    def _keep_in_cache(self, made: Made) -> None:
        if self.writer is None:
            return
        for name, parts in made.items():
            if name in self.target.skeleton.names:
                layer, short = self.target.skeleton.names[name]
                for role, part in parts.items():
                    self.writer.write(layer, self._item(layer, short, role), part)

    def _item(self, layer: int, short: str, role: Role) -> int:
        return self.target.skeleton.layout.extents[layer].by_key[short, role].offset

    def _pass_on(self, batches: Sequence[Sequence[Job]], made: Made) -> None:
        team = self.target.team
        for source, batch in enumerate(batches):
            for job in batch:
                for name in job.targets:
                    if name not in self.target.skeleton.names:
                        self._share(name, source, made)
        if self.skip_layers:
            return
        parcels = list(parcels_of(self.target.skeleton, self.target.cut, team.members, batches))
        mine = [(made[p.key[0]][p.key[1]], p) for p in parcels if p.source == team.me]
        arriving = [p for p in parcels if p.target == team.me != p.source]
        self.incoming.reserve(sum(aligned(p.nbytes) for p in arriving))
        memory = [self.incoming.take(p.nbytes) for p in arriving]
        swap(
            team,
            parcels,
            [part[p.offset : p.offset + p.nbytes] for part, p in mine if p.target != team.me],
            memory,
        )
        for part, p in mine:
            if p.target == team.me:
                self.target.put(p.layer, p.begin, part[p.offset : p.offset + p.nbytes])
        for part, p in zip(memory, arriving, strict=True):
            self.target.put(p.layer, p.begin, part)

    def _share(self, name: str, source: int, made: Made) -> None:
        """Give a parameter outside the extents to everyone."""
        team = self.target.team
        for role in target_parts(self.target.skeleton, name):
            memory = self.residents.part(name, role)
            if source == team.me and made[name][role].data_ptr() != memory.data_ptr():
                memory.copy_(made[name][role])
            team.broadcast(memory, source)
