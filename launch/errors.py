"""The one error of this package."""

__all__ = ["LaunchError"]


class LaunchError(Exception):
    """A launch that cannot be built or run: what was asked, what was found, what to do."""

    def __init__(self, *, asked: str, found: str, remedy: str) -> None:
        """Keep the three parts as data, so that a caller can print or store them."""
        super().__init__(f"asked: {asked}; found: {found}; remedy: {remedy}")
        self.asked = asked
        self.found = found
        self.remedy = remedy
