"""What a setting costs: bytes by named term and phase, seconds by named term. Pure functions of frozen values."""
