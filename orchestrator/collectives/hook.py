"""Lets DistributedDataParallel reduce its gradients by a schedule of ours."""

# Annotations are values here, not texts: DDP compares those of its hooks with its own types.
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from orchestrator.collectives.execute import Executor, Pieces
from orchestrator.collectives.program import sums_alike
from orchestrator.errors import Problem, UserError
from topology.collectives import Collective
from topology.schedule import Schedule


def attach(
    model: DistributedDataParallel, schedule: Schedule, group: dist.ProcessGroup, pieces: Pieces | None = None
) -> Executor:
    """Make the model's gradients the mean over the ranks by `schedule`, from the next backward pass on.

    Args:
        model: whose buckets are reduced; a model takes one hook in its life.
        schedule: an all-reduce over all ranks.
        group: a process group used for nothing else, of the same ranks as the model's own.
        pieces: how buckets are cut for the way.

    Returns:
        The executor; close it when training is over.

    Raises:
        UserError: on all ranks, if the schedule is no all-reduce, would leave the ranks with different bits, or is not
            the same everywhere.
    """
    problems: list[Problem] = []
    if schedule.collective is not Collective.all_reduce:
        remedy = "choose an all-reduce schedule"
        problems.append(Problem(where="schedule", found=f"a schedule for {schedule.collective.value}", remedy=remedy))
    if not sums_alike(schedule):
        found = f"{schedule.algorithm} sums in another order on each rank, so that copies of the model drift apart"
        problems.append(Problem(where="schedule", found=found, remedy="choose one that sums once and copies the sum"))
    if problems:
        raise UserError(*problems)
    executor = Executor(schedule, group, pieces)
    model.register_comm_hook(executor, mean_of_bucket)
    return executor


def mean_of_bucket(
    executor: Executor,
    bucket: dist.GradBucket,  # type: ignore[name-defined] # missing in the stubs
) -> torch.futures.Future[torch.Tensor]:
    """Divide a bucket by the number of ranks and sum it over them (in this order, as DDP itself does)."""
    gradients = bucket.buffer()
    gradients.div_(executor.schedule.size)
    devices = [gradients.device] if gradients.is_cuda else []
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)

    def done(error: BaseException | None) -> None:
        if error is None:
            future.set_result(gradients)
        else:
            # The autograd engine passes on what an exception says, not what it is.
            future.set_exception(error)  # type: ignore[arg-type]

    executor.start(gradients, done=done)
    return future
