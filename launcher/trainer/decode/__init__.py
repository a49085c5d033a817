"""Translation with a trained single-device model."""
