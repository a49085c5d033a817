"""What `launcher.trainer.api` and `sharded` ask of a network of one's own before they divide its batches."""
