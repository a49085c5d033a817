"""The commands, one file per verb. `launcher.cli.main` imports only the called one."""
