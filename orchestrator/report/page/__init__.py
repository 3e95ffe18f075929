"""One run, two runs or a sweep as a self-contained HTML page: pure functions of what `read` found."""
