"""Writes checkpoints beside the steps: one thread, one checkpoint at a time."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait

from orchestrator.train.checkpoint import Checkpoint, CheckpointStore, WriteError, Written


class CheckpointWriter:
    """The thread of rank 0 that turns snapshots into files; its caller's thread alone uses the methods."""

    def __init__(self, store: CheckpointStore) -> None:
        """Write into this store."""
        self._store = store
        # Made anew by the first job; an idle one costs nothing.
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._job: Future[Written] | None = None

    @property
    def has_job(self) -> bool:
        """Whether there is one that `take` has not answered for."""
        return self._job is not None

    @property
    def is_writing(self) -> bool:
        """Whether files are being written now."""
        return self._job is not None and not self._job.done()

    def start(self, checkpoint: Checkpoint) -> None:
        """Begin to write a snapshot, which nobody may change from now on.

        Raises:
            RuntimeError: what became of the one before was not taken yet.
        """
        if self._job is not None:
            raise RuntimeError("one checkpoint at a time")
        self._job = self._pool.submit(self._store.write, checkpoint)

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait for what is being written; return whether nothing is any more."""
        if self._job is not None:
            wait([self._job], timeout=timeout_seconds)
        return not self.is_writing

    def take(self) -> Written | WriteError | None:
        """Return what became of the last one, once; None where there is none or it is still being written."""
        if self._job is None or not self._job.done():
            return None
        job, self._job = self._job, None
        error = job.exception()
        if error is None:
            return job.result()
        if isinstance(error, WriteError):
            return error
        raise error

    def close(self, timeout_seconds: float) -> None:
        """Wait for what is being written, but not for ever, and end the thread."""
        self.wait(timeout_seconds)
        self._pool.shutdown(wait=False)
