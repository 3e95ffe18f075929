"""Reports of runs: predicted against measured."""
