"""The commands, one file for each verb; `launcher.cli.main` imports the one that is called."""
