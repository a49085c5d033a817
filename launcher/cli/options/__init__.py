"""Option types, and the options and arguments that several commands share.

To change which options a project file may set: project_file.py, project_place.py (agents and ranks never read it).
To change what a shell completes: completion.py (do not import pydantic or rich, which are slow to import).
To change the suggestion for a mistyped option or command: command_suggestions.py (suggest only a command that does the
    same).
"""
