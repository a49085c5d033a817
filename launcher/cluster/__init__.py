"""Runs on several servers: the coordinator, and the agents that connect to it.

To change when a server counts as lost: connections.py, lost_agents.py, launcher/supervise/channel.py (both sides use
    the time limit that the coordinator sends).
To change which servers must resolve MASTER_ADDR: meeting_check.py, agent_setup.py, registration.py (if no server can
    resolve a name, the name is only a label).
To change how long a run waits for servers: agent_starter.py, launcher/cli/run_options.py (use a single timeout).
"""
