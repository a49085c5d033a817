"""Where agents are started, and with what: the RunSpec, the agent of this machine."""
