"""One rank of the tests: `python rank.py RANK SIZE FILE PART...`. Prints a line of JSON for each part."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from launch.parent_death import die_with_parent
from orchestrator.collectives.execute import Executor, Pieces
from orchestrator.collectives.hook import attach
from orchestrator.collectives.program import sums_alike
from orchestrator.errors import RunFailed, UserError
from topology.collectives import Chunk, Collective
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind
from topology.schedule import Schedule, Send

Move = tuple[int, int, int, int, bool]  # step, source, target, chunk, add
WHOLE = Fraction(1)
SIZES = (0, 1, 3, 10, 1000)
TYPES = (torch.int64, torch.float32)
OTHER_TYPES = (torch.int16, torch.uint8, torch.float64, torch.bfloat16, torch.float16)
# Largest error for a sum of four numbers up to 4, by the distance of two neighbours there.
TOLERANCE = {torch.float64: 1e-14, torch.float32: 4e-6, torch.float16: 0.03, torch.bfloat16: 0.2}


def schedule(name: str, kind: Collective, chunks: Sequence[Chunk], sends: Sequence[Move], size: int) -> Schedule:
    nodes = tuple(Node(id=f"d{rank}", kind=NodeKind.device) for rank in range(size))
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    edges = tuple(Edge(tail=a, head=b, units=1000, link=LinkClass.memory) for a, b in pairs)
    made = tuple(
        Send(step=step, source=a, target=b, chunk=chunk, path=(pairs.index((a, b)),), add=add)
        for step, a, b, chunk, add in sorted(sends, key=lambda send: send[0])
    )
    graph = Graph(nodes=nodes, edges=edges, size=size)
    return Schedule(algorithm=name, collective=kind, graph=graph, chunks=tuple(chunks), sends=made)


def ring(size: int, kind: Collective) -> Schedule:
    steps = size - 1
    part = Fraction(1, size)
    around = [(chunk, hop) for chunk in range(size) for hop in range(steps)]
    # The sum of chunk c begins at rank c + 1 and ends at c; from there it goes round.
    into = [(hop, (c + 1 + hop) % size, (c + 2 + hop) % size, c, True) for c, hop in around]
    first = steps if kind is Collective.all_reduce else 0
    out = [(first + hop, (c + hop) % size, (c + 1 + hop) % size, c, False) for c, hop in around]
    parts = {Collective.all_reduce: into + out, Collective.reduce_scatter: into, Collective.all_gather: out}
    ends = {Collective.all_gather: "origin", Collective.reduce_scatter: "target"}.get(kind)
    own = [{"origin": None, "target": None, **({ends: c} if ends else {})} for c in range(size)]
    return schedule("ring", kind, [Chunk(share=part, **ends) for ends in own], parts[kind], size)


def star(size: int) -> Schedule:
    """Uneven chunks: sums at two roots at once, then copies."""
    chunks = [Chunk(origin=None, target=None, share=Fraction(share, 5)) for share in (2, 3)]
    roots = ((0, 0), (1, size - 1))
    into = [(0, rank, root, c, True) for c, root in roots for rank in range(size) if rank != root]
    out = [(1, root, rank, c, False) for c, root in roots for rank in range(size) if rank != root]
    return schedule("star", Collective.all_reduce, chunks, into + out, size)


def at_once(size: int) -> Schedule:
    chunk = [Chunk(origin=None, target=None, share=WHOLE)]
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    return schedule("at once", Collective.all_reduce, chunk, [(0, a, b, 0, True) for a, b in pairs], size)


def detours(size: int) -> Schedule:
    """All-to-all in which the data of far pairs goes through the rank after its source."""
    chunks, sends = [], []
    for a in range(size):
        for b in range(size):
            if a == b:
                continue
            middle = (a + 1) % size
            stops = [a, b] if middle == b else [a, middle, b]
            sends += [(at, x, y, len(chunks), False) for at, (x, y) in enumerate(pairwise(stops))]
            chunks.append(Chunk(origin=a, target=b, share=Fraction(1, size)))
    return schedule("detours", Collective.all_to_all, chunks, sends, size)


def values(elements: int, kind: torch.dtype, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    if kind.is_floating_point:
        return (torch.rand(elements, generator=generator) * 2 - 1).to(kind)
    return torch.randint(0, 50, (elements,), generator=generator).to(kind)


def check_all_reduce(executor: Executor, elements: int, kind: torch.dtype, rank: int, size: int) -> None:
    data = values(elements, kind, rank)
    again, plain = data.clone(), data.clone()
    executor.run(data)
    executor.run(again)
    assert torch.equal(data, again), "two runs differ"
    if kind.is_floating_point:
        exact = sum(values(elements, kind, other).double() for other in range(size))
        assert elements == 0 or (data.double() - exact).abs().max() <= TOLERANCE[kind]
    else:
        exact = plain.to(torch.int64)  # gloo sums no 16-bit integers
        dist.all_reduce(exact)
        assert torch.equal(data, exact.to(kind))
    if sums_alike(executor.schedule):
        sums = [torch.empty_like(data) for _ in range(size)] if elements else []
        if sums:
            dist.all_gather([one.view(torch.uint8) for one in sums], data.view(torch.uint8))
        assert all(torch.equal(one, data) for one in sums)


def check_moves(
    gather: Executor, scatter: Executor, exchange: Executor, elements: int, kind: torch.dtype, rank: int, size: int
) -> None:
    whole = values(elements, kind, 7)
    data = torch.zeros_like(whole)
    gather.block(data).copy_(gather.block(whole))
    gather.run(data)
    assert torch.equal(data, whole)
    if not kind.is_floating_point:
        data = values(elements, kind, rank)
        exact = sum(values(elements, kind, other).to(torch.int64) for other in range(size)).to(kind)
        scatter.run(data)
        assert torch.equal(scatter.block(data), scatter.block(exact))
    each = elements // size
    data = values(each * size, kind, rank)
    result = torch.empty_like(data)
    exchange.run(data, result)
    expected = [values(each * size, kind, other)[rank * each : (rank + 1) * each] for other in range(size)]
    assert torch.equal(result, torch.cat(expected))


def collectives(rank: int, size: int) -> str:
    for grouped in (False, True):
        small = Pieces(piece_bytes=256, most=7, depth=2, grouped=grouped)
        made = {
            name: Executor(one, dist.new_group(), small)
            for name, one in {
                "ring": ring(size, Collective.all_reduce),
                "star": star(size),
                "at once": at_once(size),
                "gather": ring(size, Collective.all_gather),
                "scatter": ring(size, Collective.reduce_scatter),
                "exchange": detours(size),
            }.items()
        }
        cases = [(kind, elements) for kind in TYPES for elements in SIZES] + [(kind, 501) for kind in OTHER_TYPES]
        for kind, elements in cases:
            for name in ("ring", "star", "at once"):
                check_all_reduce(made[name], elements, kind, rank, size)
            check_moves(made["gather"], made["scatter"], made["exchange"], elements, kind, rank, size)
        uneven(made["gather"], made["exchange"], rank, size)
        held = made["ring"].pool_bytes
        under_way(made["ring"], rank, size)
        assert held <= made["ring"].pool_bytes <= held + 100_000, "buffers are not used again"
        refusals(made["ring"], made["exchange"])
        for executor in made.values():
            executor.close()
    return "ok"


def uneven(gather: Executor, exchange: Executor, rank: int, size: int) -> None:
    counts = tuple(3 * other for other in range(size))
    whole = torch.arange(sum(counts))
    data = torch.zeros_like(whole)
    gather.block(data, counts).copy_(gather.block(whole, counts))
    gather.run(data, counts=counts)
    assert torch.equal(data, whole)
    matrix = [[5 * a + b for b in range(size)] for a in range(size)]
    rows = [torch.arange(sum(row)) + 100 * a for a, row in enumerate(matrix)]
    result = torch.empty(sum(row[rank] for row in matrix), dtype=torch.int64)
    exchange.run(rows[rank], result, counts=matrix)
    expected = [torch.split(row, sizes)[rank] for row, sizes in zip(rows, matrix, strict=True)]
    assert torch.equal(result, torch.cat(expected))


def under_way(executor: Executor, rank: int, size: int) -> None:
    several = [torch.full((1000,), rank + at) for at in range(5)]
    handles = [executor.start(one) for one in several]
    for handle in reversed(handles):
        handle.wait()
    assert [int(one[0]) for one in several] == [size * (size - 1) // 2 + size * at for at in range(5)]


def refusals(reduce: Executor, exchange: Executor) -> None:
    """What does not fit is refused before anything is sent, so that the executor goes on working."""
    for executor, given, words in (
        (reduce, (torch.zeros(4, 4),), "flat"),
        (reduce, (torch.zeros(8)[::2],), "contiguous"),
        (exchange, (torch.zeros(8),), "needs a tensor"),
        (exchange, (torch.zeros(8), torch.zeros(8, dtype=torch.float64)), "float64"),
        (exchange, (torch.zeros(8), torch.zeros(99)), "99 elements"),
    ):
        with pytest.raises(UserError, match=words):
            executor.run(*given)


def different_schedules(rank: int, size: int) -> str:
    chosen = star(size) if rank == 1 else ring(size, Collective.all_reduce)
    try:
        Executor(chosen, dist.new_group())
    except UserError as error:
        return str(error)
    return "not refused"


def wrong_size(rank: int, size: int) -> str:
    try:
        Executor(star(size if rank else size + 1), dist.new_group())
    except UserError as error:
        return str(error)
    return "not refused"


def lost_peer(rank: int, size: int) -> list[tuple[float, str]]:
    executor = Executor(ring(size, Collective.all_reduce), dist.new_group(timeout=timedelta(seconds=3)))
    executor.run(torch.ones(1000))
    if rank == size - 1:
        os._exit(0)  # without a word to the others
    return fails_twice(executor)


def slow_peer(rank: int, size: int) -> list[tuple[float, str]] | str:
    executor = Executor(ring(size, Collective.all_reduce), dist.new_group(timeout=timedelta(seconds=2)))
    if rank == size - 1:
        time.sleep(6)
        return "ok"
    return fails_twice(executor)


def fails_twice(executor: Executor) -> list[tuple[float, str]]:
    told = []
    for _ in range(2):  # an executor that failed once says so at once
        begin = time.monotonic()
        try:
            executor.run(torch.ones(100_000))
        except RunFailed as error:
            told.append((time.monotonic() - begin, str(error)))
    return told


def training(rank: int, size: int) -> str:
    plain = losses(rank, None, size)
    ours, again = (losses(rank, star(size), size) for _ in range(2))
    assert ours == again, "two runs differ"
    assert len(set(plain)) == len(plain)
    assert all(abs(a - b) <= 1e-5 * abs(b) for a, b in zip(ours, plain, strict=True)), (ours, plain)
    model = DistributedDataParallel(nn.Linear(4, 4))
    if size > 2:
        refused(model, at_once(size), "drift apart")
    refused(model, ring(size, Collective.all_gather), "all_gather")
    return "ok"


def refused(model: DistributedDataParallel, wrong: Schedule, words: str) -> None:
    with pytest.raises(UserError, match=words):
        attach(model, wrong, dist.new_group())


def losses(rank: int, chosen: Schedule | None, size: int) -> list[float]:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    model = DistributedDataParallel(inner, bucket_cap_mb=0.01)
    executor = attach(model, chosen, dist.new_group(), Pieces(piece_bytes=1024)) if chosen else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)  # each rank has data of its own
    found = []
    for _ in range(6):
        x = torch.randn(32, 16)
        loss = ((model(x) - x.sum(1, keepdim=True).sin()) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        found.append(float(total))
    if executor is not None:
        executor.close()
    sums = [torch.empty(1) for _ in range(size)]
    dist.all_gather(sums, sum(p.detach().double().sum() for p in inner.parameters()).float().reshape(1))
    assert all(torch.equal(one, sums[0]) for one in sums), "the copies of the model differ"
    return found


def main() -> None:
    die_with_parent()
    rank, size, meet = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    wait = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=size, timeout=wait)
    for part in sys.argv[4:]:
        print(json.dumps([part, globals()[part](rank, size)]), flush=True)
    os._exit(0)  # some parts leave groups behind that are broken


if __name__ == "__main__":
    main()
