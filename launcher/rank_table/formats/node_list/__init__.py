"""v1.1: nodes whose ranks are devices, or processes on the host itself."""
