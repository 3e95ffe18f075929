"""What a killed run of the shaped hosts leaves is found by its name, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from bench.shaped_hosts import is_alive, stale

LISTED = """\
shaped41-switch (id: 3)
shaped41-0 (id: 4)
shaped42-1
docker7
shaped-x
shapedx-0
my-shaped41-0

"""


def test_only_our_own_of_processes_that_are_gone() -> None:
    assert stale(LISTED, lambda process: process == 42) == ("shaped41-switch", "shaped41-0")
    assert stale(LISTED, lambda _: True) == ()
    assert stale("", lambda _: False) == ()


def test_a_process_is_alive_until_it_is_gone() -> None:
    assert is_alive(os.getpid())
    assert is_alive(1)
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert not is_alive(done.pid)


def test_sigterm_ends_in_the_clean_up() -> None:
    script = """
import os, signal
from bench import shaped_hosts as s
s._ip = lambda *words: None
s._add_host = lambda *words: None
s._remove_stale = lambda: None
s._delete = lambda name: print("deleted", name.split("-")[1], flush=True)
os.geteuid = lambda: 0
with s.shaped_hosts(2, 10**6):
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert done.stdout.split() == ["deleted", "0", "deleted", "1", "deleted", "switch"]
