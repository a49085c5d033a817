"""The public API for sharding a custom network's operators over ranks."""
