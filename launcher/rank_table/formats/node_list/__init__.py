"""Format v1.1: nodes whose ranks use devices, or run as processes on the host itself."""
