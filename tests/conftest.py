"""Settings for all tests."""

import os

from hypothesis import settings

# A busy machine must not fail a property: time limits are pytest-timeout's business. On CI the examples are always
# the same, so that a change is judged by what it changes; elsewhere each run looks for new ones.
settings.register_profile("default", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("default")
