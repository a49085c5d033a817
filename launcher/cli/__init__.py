"""The commands, one file each; the only room that prints."""
