"""Where agents are started, and with what: the RunSpec, the rendezvous port, the agent of this machine."""
