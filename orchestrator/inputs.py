"""What planning needs from the outside: the machine, the model's shape, the size of the data.

Reads files and probes the host; imports nothing heavy, so that `plan` answers at once.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.config import DataConfig, RunConfig
from orchestrator.config import Shape as ConfigShape
from orchestrator.dataset.messages import Sample, Shape
from orchestrator.dataset.samples import DataSource, Samples, load_samples
from orchestrator.errors import Problem, UserError
from orchestrator.workload.batch import DataStats
from orchestrator.workload.files import hub_cache_dir, is_hub_id, require_folder, resolve
from orchestrator.workload.headers import load_shape
from orchestrator.workload.model import ModelShape
from topology.errors import TopologyError
from topology.model import Topology
from topology.probe import probe_host, read_topology

_MAX_SAMPLED_ROWS = 512
_TOKENS_PER_TURN = 5  # role markers and line ends of a usual chat template
_TOKENS_PER_CHAR = 0.3  # English text and code under a 32k vocabulary; used without a tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything the planner asks for besides the configuration."""

    topology: Topology
    model: ModelShape
    data: DataStats
    notes: tuple[str, ...]


def gather(config: RunConfig, *, download: bool = False) -> Inputs:
    """Read all inputs; problems of model, data and machine come together.

    Args:
        config: what the user asked for.
        download: fetch a hub id that is not in the local cache.

    Raises:
        UserError: what is wrong with any of them.
    """
    problems: list[Problem] = []
    model = samples = machine = None
    folder = Path()
    try:
        folder = model_folder(config, download=download)
        model = load_shape(folder, config.model.path)
        check_model(config, model, folder)
    except UserError as error:
        problems.extend(error.problems)
    try:
        samples = load_samples(data_source(config.data, config.seed))
    except UserError as error:
        problems.extend(error.problems)
    try:
        machine = machine_of(config)
    except UserError as error:
        problems.extend(error.problems)
    if problems or model is None or samples is None or machine is None:
        raise UserError(*problems)
    return Inputs(topology=machine, model=model, data=data_stats(samples, folder), notes=samples.notes)


def located(config: RunConfig) -> RunConfig:
    """Make the paths absolute: ranks work in the run directory."""
    model = (
        config.model if not _is_here(config.model.path) else replace(config.model, path=_absolute(config.model.path))
    )
    data = replace(
        config.data,
        path=_absolute(config.data.path),
        eval_path=_absolute(config.data.eval_path) if config.data.eval_path else "",
    )
    topology = config.topology
    if topology.path:
        topology = replace(topology, path=_absolute(topology.path))
    return replace(config, model=model, data=data, topology=topology)


def _is_here(path: str) -> bool:
    return Path(path).expanduser().exists() or not is_hub_id(path)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def machine_of(config: RunConfig) -> Topology:
    """Probe this host, or read the description the user names."""
    try:
        return read_topology(Path(config.topology.path)) if config.topology.path else probe_host()
    except TopologyError as error:
        found = error.found or "; ".join(str(problem) for problem in error.problems)
        raise UserError(Problem(where=config.topology.path or "probe", found=found, remedy=error.remedy)) from error


def model_folder(config: RunConfig, *, download: bool) -> Path:
    """Return the local folder of the model.

    Raises:
        UserError: no such folder, not in the cache, or the hub does not give it.
    """
    cache = hub_cache_dir(os.environ, Path.home())
    path, revision = config.model.path, config.model.revision
    if download and is_hub_id(path) and resolve(path, cache, revision) is None:
        return _download(path, revision, cache)
    return require_folder(path, cache, revision)


def _download(path: str, revision: str, cache: Path) -> Path:
    from huggingface_hub import snapshot_download

    print(f"downloading {path} to {cache}", file=sys.stderr, flush=True)
    try:
        found = snapshot_download(
            path,
            revision=revision or None,
            cache_dir=cache,
            allow_patterns=["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.py"],
        )
    except Exception as error:  # the hub's client lets many kinds through
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            Problem(
                where=f"model={path}",
                found=f"no such folder here, and the hub did not give it ({type(error).__name__}: {reason})",
                remedy="Check the spelling and the connection (and `hf auth login` for gated models), "
                "or give a local folder.",
            )
        ) from error
    return Path(found)


def data_source(data: DataConfig, seed: int) -> DataSource:
    """Translate the configuration for the data package."""
    return DataSource(
        path=Path(data.path),
        eval_path=Path(data.eval_path) if data.eval_path else None,
        shape=None if data.shape is ConfigShape.auto else Shape(data.shape.value),
        eval_fraction=data.eval_fraction or None,
        max_rows=data.max_rows,
        max_eval_rows=data.max_eval_rows,
        seed=seed,
    )


def check_model(config: RunConfig, model: ModelShape, folder: Path) -> None:
    """Check what a rank would only find out after loading libraries.

    Raises:
        UserError: no weights, no tokenizer, or rows longer than the model can take.
    """
    problems = []
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        problems.append(
            Problem(where=str(folder), found="no weights (*.safetensors)", remedy="Download the model again.")
        )
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        problems.append(
            Problem(where=str(folder), found="no tokenizer.json", remedy="Save the tokenizer beside the model.")
        )
    seq_len = config.data.seq_len
    if seq_len and model.max_positions and seq_len > model.max_positions:
        problems.append(
            Problem(
                where="data.seq_len",
                found=f"found {seq_len}, the model takes at most {model.max_positions} positions",
                remedy=f"Use data.seq_len={model.max_positions} or less.",
            )
        )
    if problems:
        raise UserError(*problems)


def data_stats(samples: Samples, folder: Path) -> DataStats:
    """Count tokens of some rows with the model's tokenizer, and carry over to all by their length."""
    train = samples.train
    per_char, source = _tokens_per_char(train, folder)
    tokens = [_row_tokens(sample, per_char) for sample in train]
    return DataStats(
        rows=len(train),
        eval_rows=len(samples.eval),
        mean_tokens=sum(tokens) / len(tokens),
        max_tokens=max(tokens),
        total_tokens=sum(tokens),
        source=source,
    )


def _row_tokens(sample: Sample, per_char: float) -> int:
    return max(2, round(sample.num_chars * per_char) + _TOKENS_PER_TURN * len(sample.messages))


def _tokens_per_char(train: tuple[Sample, ...], folder: Path) -> tuple[float, str]:
    path = folder / "tokenizer.json"
    if not path.is_file():
        return _TOKENS_PER_CHAR, "guessed from the length of the text (the model has no tokenizer.json)"
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise UserError(
            Problem(where=str(path), found=f"not a tokenizer ({error})", remedy="Download the model again.")
        ) from error
    step = -(-len(train) // _MAX_SAMPLED_ROWS)
    chosen = train[::step]
    texts = [message.content for sample in chosen for message in sample.messages]
    num_tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts, add_special_tokens=False))
    num_chars = sum(len(text) for text in texts)
    return num_tokens / max(num_chars, 1), f"counted on {len(chosen)} of {len(train)} rows"
