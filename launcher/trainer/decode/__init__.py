"""Translation by the trained single-device model."""
