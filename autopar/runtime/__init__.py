"""Execution of programs: lanes, events, generated code, recordings."""
