"""The recipe of the quickstart tutorial, a network with operator strategies: settings, graph, checks."""
