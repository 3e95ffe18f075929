"""One rank of `compress_loss.py`: the run of a plan, or the same with torch's PowerSGD hook in the place of ours."""

from __future__ import annotations

import sys
from typing import Any, Final

from orchestrator.train.worker import main

_RANK: Final = 1  # of the approximation: torch's own default
_METHOD, _PLAN = 1, 2
_ONE_BUCKET_MB: Final = 4096


def use_power_sgd(start_step: int) -> None:
    """Sum gradients with PowerSGD from `start_step` on, with error feedback and warm start."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    from orchestrator.train import begin, loop
    from orchestrator.train.gradients import GradientSum

    plain = loop.training_arguments

    def training_arguments(*words: Any) -> Any:  # noqa: ANN401
        # The hook sums from callbacks, in the order in which they come: over gloo, several buckets wait for each other.
        arguments = plain(*words)
        arguments.ddp_bucket_cap_mb = _ONE_BUCKET_MB
        return arguments

    def sum_gradients(_plan: object, _run_dir: object, _group: object, model: Any) -> GradientSum:  # noqa: ANN401
        if not isinstance(model, DistributedDataParallel):
            raise TypeError("PowerSGD needs DistributedDataParallel")
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=_RANK, start_powerSGD_iter=max(2, start_step)
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return GradientSum(None, f"PowerSGD of rank {_RANK} from step {start_step} on")

    begin.sum_gradients, loop.training_arguments = sum_gradients, training_arguments


if __name__ == "__main__":
    method = sys.argv[_METHOD]
    if method.startswith("powersgd"):
        use_power_sgd(int(method.removeprefix("powersgd")))
    sys.exit(main(sys.argv[_PLAN:]))
