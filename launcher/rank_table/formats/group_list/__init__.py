"""The two formats without a version: legacy-lab and legacy-cloud."""
