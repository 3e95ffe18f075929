"""Who reads what in which round, what a rank needs of a tensor, and what that takes."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.weights.layout import ALIGNMENT_BYTES, FrozenTensor, Role, extent_of
from orchestrator.weights.load_bytes import PORTION, LoadPeak, packing_bytes
from orchestrator.weights.load_plan import gaps
from orchestrator.weights.rounds import BUNDLE_BYTES, overlap, share_out


@dataclass(frozen=True)
class Job:
    first: str
    read_bytes: int


SIZES = st.lists(st.integers(0, 3 * BUNDLE_BYTES), max_size=40)


@given(SIZES, st.integers(1, 5))
def test_every_job_is_done_once_and_every_rank_has_a_batch(sizes: list[int], ranks: int) -> None:
    jobs = [Job(f"{at}", nbytes) for at, nbytes in enumerate(sizes)]
    rounds = share_out(jobs, ranks)
    assert all(len(batches) == ranks for batches in rounds)
    done = [job for batches in rounds for batch in batches for job in batch]
    assert sorted(done, key=lambda job: int(job.first)) == jobs
    # A batch is one job, or several that are small together.
    for batch in (batch for batches in rounds for batch in batches):
        assert len(batch) <= 1 or sum(job.read_bytes for job in batch) <= BUNDLE_BYTES
    # The order does not depend on that of the jobs: all ranks come to the same one.
    assert share_out(jobs[::-1], ranks) == rounds


@given(st.lists(st.integers(BUNDLE_BYTES, 3 * BUNDLE_BYTES), min_size=1, max_size=40), st.integers(1, 5))
def test_large_jobs_of_a_round_are_alike(sizes: list[int], ranks: int) -> None:
    rounds = share_out([Job(f"{at}", nbytes) for at, nbytes in enumerate(sizes)], ranks)
    ordered = sorted(sizes, reverse=True)
    slowest = [max(sum(job.read_bytes for job in batch) for batch in batches) for batches in rounds]
    assert slowest == ordered[::ranks]  # no way of dealing them in such rounds is over sooner


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_overlap_of_a_tensor_and_a_span(begin: int, nbytes: int, first: int, length: int) -> None:
    both = sorted(set(range(begin, begin + nbytes)) & set(range(first, first + length)))
    part = overlap(begin, nbytes, first, first + length)
    assert ([] if part is None else list(range(begin + part.begin, begin + part.begin + part.nbytes))) == both


@given(st.lists(st.integers(0, 200), max_size=8))
def test_gaps_are_what_no_tensor_has(sizes: list[int]) -> None:
    tensors = [FrozenTensor(name=f"{at}", role=Role.plain, dtype="uint8", shape=(n,)) for at, n in enumerate(sizes)]
    extent = extent_of(tensors)
    covered = [at for item in extent.items for at in range(item.offset, item.end)]
    covered += [at for begin, end in gaps(extent) for at in range(begin, end)]
    assert sorted(covered) == list(range(extent.nbytes))
    assert all(end - begin < ALIGNMENT_BYTES for begin, end in gaps(extent))


def test_a_peak_is_the_sum_of_its_terms() -> None:
    peak = LoadPeak(kept=100, raw=20, made=5, incoming=4, passing=1)
    assert (peak.total, peak.beside) == (130, 30)
    assert packing_bytes("nf4", 1000) == 14_100
    assert packing_bytes("nf4", 1000, blocks=10, copy_bytes=2) == 16_140
    assert packing_bytes("nf4", 64 * 10**6, blocks=10**6) == 9 * 10**6
    assert packing_bytes("nf4", 10 * PORTION) == packing_bytes("nf4", PORTION) == round(14.1 * PORTION)
