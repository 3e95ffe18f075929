"""What the machine is and what its links can do.

Pure values and functions, except `topology.probe`, which alone does I/O.
Import from the modules: `topology.model`, `topology.codec`, `topology.hardware`, `topology.presets`,
`topology.probe`, `topology.render`.
"""
