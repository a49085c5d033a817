"""The bundled trainer on the command line: its command, its settings, its checkpoints and the models that it has trained."""
