"""Settings for all tests."""

import atexit
import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings

# A busy machine must not fail a property: time limits are pytest-timeout's business. On CI the examples are always
# the same, so that a change is judged by what it changes; elsewhere each run looks for new ones.
settings.register_profile("default", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("default")

# What `bench` stored for the developer's machine must not change what tests see of it; processes inherit the variable.
# Compiled extensions and downloaded models stay where they are: making them again takes minutes.
_CACHE = Path(tempfile.mkdtemp(prefix="trainmaster-tests-"))
_OWN = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
with contextlib.suppress(OSError):
    (_OWN / "torch_extensions").mkdir(parents=True, exist_ok=True)
for name in ("torch_extensions", "huggingface"):
    if (_OWN / name).is_dir():
        (_CACHE / name).symlink_to(_OWN / name)
os.environ["XDG_CACHE_HOME"] = str(_CACHE)
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
