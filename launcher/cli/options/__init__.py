"""Option types, and the options and arguments that several commands share.

To change which options a project file may set: project_file.py, project_place.py (agents and ranks never read it).
To change what a shell completes: completion.py (does not import pydantic or rich).
To change the suggestion for a mistyped option or command: command_suggestions.py (a suggested line does the same, or
    none is given).
"""
