"""Tokenise the rows of a run before any rank starts: `python -m orchestrator.train.prepare PLAN`."""

from __future__ import annotations

import sys

from launch.parent_death import die_with_parent
from orchestrator.errors import ExitCode, UserError
from orchestrator.train.worker import plan_path, quiet_libraries, read_plan, report, set_environment


def main() -> int:
    """Prepare the run directory of the plan; a second call finds the work done."""
    die_with_parent()
    try:
        path = plan_path(sys.argv[1:])
        plan = read_plan(path)
        set_environment(plan)
        quiet_libraries()
        from orchestrator.train.rows import check_architecture, load_tokenizer, prepare_rows
        from orchestrator.train.sources import told

        config = plan.run_config
        check_architecture(config)
        cached = prepare_rows(config, plan.rows_tokens, path.parent, load_tokenizer(config))
        for note in cached.notes:
            print(f"note: {note}", flush=True)
        for line in told(config, cached.parts):
            print(line, flush=True)
        for side, stats in cached.stats.items():
            print(
                f"{side}: {stats.rows:,} rows, {stats.tokens:,} tokens, {stats.label_tokens:,} with loss, "
                f"longest row {stats.length_max}",
                flush=True,
            )
    except UserError as error:
        report(error)
        return int(ExitCode.BAD_INPUT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
