"""The recipe of the quickstart tutorial's network, whose operators are given strategies: settings, graph, checks."""
