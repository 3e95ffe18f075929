"""A batch job under SLURM: sbatch gets a script in which srun starts one torchrun agent per node, without ssh."""

import shlex
from dataclasses import replace
from importlib import resources
from typing import Any

from launch import environment
from launch.backends import several, torchrun
from launch.backends.paths import logs_dir
from launch.errors import LaunchError
from launch.host_job import dumps
from launch.request import FileToWrite, Request
from launch.slurm_options import ContainerRuntime, SlurmOptions, is_plain
from launch.spec import RESERVED_NAMES, Backend, DeviceKind, LaunchSpec

__all__ = ["build", "default_template", "exports_path", "script_path"]


def build(
    spec: LaunchSpec,
    options: SlurmOptions,
    *,
    prepare: str,
    measure: str = "",
    compare: str = "",
    watch: str = "",
    template: str = "",
) -> Request:
    """Write the batch script, the ranks' variables and the nodes' parts, and submit it.

    Args:
        spec: its hosts have no names, for SLURM chooses them.
        options: what the job asks for.
        prepare: module that is run once, on the first node, before the ranks.
        measure: module that is run on each node before that, with the run directory and the number of the attempt;
            empty for none, and then there is no `compare`.
        compare: module that is run once after it, with the same and the path of the nodes' parts, which it may change.
        watch: module that starts the ranks on the first node and starts them again where they fail, with the run
            directory and the command; empty for none. In a container there is none: no srun works from inside.
        template: Jinja2 text in place of `default_template()`.

    Raises LaunchError for what one job cannot ask for, and for a template that does not work.
    """
    _check(spec)
    if options.container or options.conda or options.venv:
        spec = replace(spec, python="python3")  # of that environment, not of the one that launches
    values = _values(spec, options, (prepare, measure, compare), watch)
    script = _rendered(template or default_template(), values)
    job = several.job_of(spec, torchrun.part, is_batch=True)
    return Request(
        files=(
            FileToWrite(path=several.job_path(spec), text=dumps(job)),
            FileToWrite(path=script_path(spec), text=script, mode=0o755),
            FileToWrite(path=exports_path(spec), text="".join(f"{line}\n" for line in _exports(spec))),
        ),
        argv=("sbatch", "--parsable", script_path(spec)),
        env=(),
        cwd=spec.run_dir,
        log_path=f"{logs_dir(spec)}/sbatch.log",
        backend=Backend.slurm,
    )


def script_path(spec: LaunchSpec) -> str:
    """Where the batch script lies."""
    return f"{spec.run_dir}/launch/job.sbatch"


def exports_path(spec: LaunchSpec) -> str:
    """Where the ranks' variables lie: a plan that is made anew in the job has others."""
    return f"{spec.run_dir}/launch/exports.sh"


def default_template() -> str:
    """The text of `launch/templates/job.sbatch.j2`."""
    return resources.files("launch").joinpath("templates/job.sbatch.j2").read_text(encoding="utf-8")


def _check(spec: LaunchSpec) -> None:
    named = [share.name for share in spec.shares if share.name]
    problems = []
    if named:
        problems.append((f"hosts named {', '.join(named)}", "SLURM chooses the nodes: use launch.nodelist"))
    if not is_plain(spec.run_dir) or "%" in spec.run_dir:
        problems.append(
            (f"run_dir {spec.run_dir!r}", "give one without spaces, quotes, $ and %, which sbatch misreads")
        )
    if problems:
        raise LaunchError(
            asked=f"launch=slurm on {len(spec.shares)} nodes",
            found="; ".join(found for found, _ in problems),
            remedy="; ".join(remedy for _, remedy in problems),
        )


def _values(spec: LaunchSpec, options: SlurmOptions, modules: tuple[str, str, str], watch: str) -> dict[str, Any]:
    """What a template may use; texts of commands are quoted for the shell."""
    cpus = _cpus(spec, options)
    nodes = len(spec.shares)
    inside, (prepare, measure, compare) = _inside(spec, options), modules
    srun = ("srun", "--ntasks-per-node=1", *((f"--cpus-per-task={cpus}",) if cpus else ()), *inside[0])
    python = (*inside[1], spec.python)
    ranks = (*python, "-P", "-u", "-m", "launch.on_host", several.job_path(spec))
    rows = (*python, "-P", "-u", "-m", prepare, *spec.args)
    # GPUs of the whole job cannot be on one node: a step there asks for none.
    one = (*srun, "--nodes=1", "--ntasks=1", *(("--gres=none",) if _total_gpus(spec, options) else ()))
    look = (*python, "-P", "-u", "-m", measure, spec.run_dir)
    judge = (*python, "-P", "-u", "-m", compare, spec.run_dir, several.job_path(spec))
    watched = (spec.python, "-P", "-u", "-m", watch, spec.run_dir, several.job_path(spec), "--")
    # A node whose agent fails must not leave the others waiting; lines come as they are written.
    start = (*srun, f"--nodes={nodes}", "--kill-on-bad-exit=1", "--unbuffered", *ranks)
    return {
        "directives": _directives(spec, options, cpus),
        "run_dir": shlex.quote(spec.run_dir),
        "script": shlex.quote(script_path(spec)),
        "name": spec.name,
        "exports": _exports(spec),
        "exports_file": shlex.quote(exports_path(spec)),
        "setup": _setup(options),
        "prepare": shlex.join((*one, *rows)),
        "measure": shlex.join((*srun, f"--nodes={nodes}", *look)) if measure else "",
        "compare": shlex.join((*one, *judge)) if compare else "",
        "ranks": shlex.join((*(watched if watch and not options.container else ()), *start)),
        "max_requeues": options.max_requeues,
        "is_array": bool(options.array),
        "nodes": nodes,
        "options": options,
    }


def _directives(spec: LaunchSpec, options: SlurmOptions, cpus: int) -> tuple[str, ...]:
    total = _total_gpus(spec, options)
    gpus = spec.processes_per_node if spec.device_kind is DeviceKind.gpu and not total else 0
    pattern = "%A_%a" if options.array else "%j"
    asked = (
        ("job-name", options.job_name or spec.name),
        ("output", f"{logs_dir(spec)}/slurm-{pattern}.out"),
        # A requeued job goes on in the same file.
        ("open-mode", "append"),
        ("nodes", str(len(spec.shares))),
        ("ntasks-per-node", "1"),
        ("cpus-per-task", str(cpus) if cpus else ""),
        ("gres", options.gres or (f"gpu:{gpus}" if gpus else "")),
        ("gpus", str(total) if total else ""),
        ("cpus-per-gpu", "" if cpus else str(spec.threads_per_process)),
        ("mem", options.memory),
        ("time", options.time),
        ("partition", options.partition),
        ("account", options.account),
        ("qos", options.qos),
        ("constraint", options.constraint),
        ("reservation", options.reservation),
        ("nodelist", options.nodelist),
        ("exclude", options.exclude),
        ("array", options.array),
        ("mail-user", options.mail),
        ("mail-type", options.mail_on if options.mail else ""),
        # To the script alone: it asks the ranks by a file, for agents do not pass USR1 on.
        ("signal", f"B:USR1@{options.signal_seconds}" if options.signal_seconds else ""),
    )
    flags = ("--exclusive",) if options.exclusive else ()
    return (*(f"--{name}={value}" for name, value in asked if value), *flags, "--requeue", *options.extra)


def _cpus(spec: LaunchSpec, options: SlurmOptions) -> int:
    """CPUs of each node; 0 where each GPU brings its own, for a node with fewer GPUs may have fewer CPUs, too."""
    if not options.cpus and _total_gpus(spec, options):
        return 0
    return options.cpus or max((share.threads or spec.threads_per_process) * share.processes for share in spec.shares)


def _total_gpus(spec: LaunchSpec, options: SlurmOptions) -> int:
    """GPUs of the job where its nodes have unequal numbers; 0 where each has the same, or the user says otherwise."""
    is_uneven = len({share.processes for share in spec.shares}) > 1
    return spec.world_size if is_uneven and spec.device_kind is DeviceKind.gpu and not options.gres else 0


def _exports(spec: LaunchSpec) -> tuple[str, ...]:
    """Shell lines that set what the user has not set; identity and placement are set in any case."""
    return tuple(
        f"export {name}={shlex.quote(value)}"
        if name in RESERVED_NAMES
        else f'[ -n "${{{name}+set}}" ] || export {name}={shlex.quote(value)}'
        for name, value in environment.build(spec)
    )


def _setup(options: SlurmOptions) -> tuple[str, ...]:
    lines = []
    if options.modules:
        lines.append(f"module load {shlex.join(options.modules)}")
    if options.conda:
        lines.append('eval "$(conda shell.bash hook)"')
        lines.append(f"conda activate {shlex.quote(options.conda)}")
    if options.venv:
        lines.append(f"source {shlex.quote(options.venv.rstrip('/') + '/bin/activate')}")
    return tuple(lines)


def _inside(spec: LaunchSpec, options: SlurmOptions) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Flags of srun, and words before the interpreter, that put a step into the container."""
    if not options.container:
        return (), ()
    mounts = (f"{spec.run_dir}:{spec.run_dir}", *options.mounts)
    if options.container_runtime is ContainerRuntime.pyxis:
        flags = (f"--container-image={options.container}", f"--container-mounts={','.join(mounts)}")
        return (*flags, f"--container-workdir={spec.run_dir}"), ()
    gpu = ("--nv",) if spec.device_kind is DeviceKind.gpu else ()
    binds = tuple(word for mount in mounts for word in ("--bind", mount))
    return (), ("apptainer", "exec", *gpu, *binds, "--pwd", spec.run_dir, options.container)


def _rendered(template: str, values: dict[str, Any]) -> str:
    # Here and not above: the command line starts without it.
    from jinja2 import Environment, StrictUndefined, TemplateError

    shell = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - a shell script, no HTML
    try:
        return shell.from_string(template).render(values)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        raise LaunchError(
            asked="launch.template",
            found=f"{error}{f' (line {line})' if line else ''}",
            remedy=f"it may use {', '.join(sorted(values))}",
        ) from error
