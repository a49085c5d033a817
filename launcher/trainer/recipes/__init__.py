"""The bundled programs, each from its settings to its last line of output."""
