"""Settings for all tests."""

from hypothesis import settings

# A busy machine must not fail a property: time limits are pytest-timeout's business.
settings.register_profile("default", deadline=None)
settings.load_profile("default")
