"""The bundled programs, which `python -m launcher.trainer` runs on each rank."""
