"""The bundled programs, which `python -m launcher.trainer` runs on each rank.

To change a program's loop: loop.py, program.py, save_loop.py, network_program.py (every program implements `Program`).
"""
