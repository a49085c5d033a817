"""Runs on several servers: the coordinator, and the agents that connect to it.

To change when a server counts as lost: connections.py, lost_agents.py, launcher/supervise/channel.py (both sides use
    the limit that the coordinator sends).
To change which servers must resolve MASTER_ADDR: meeting_check.py, agent_setup.py, registration.py (a name that no
    server resolves is only a label).
To change how long servers are awaited: agent_starter.py, launcher/cli/run_options.py (one timeout; messages name it).
"""
