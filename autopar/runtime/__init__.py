"""Program → outputs and timeline: lanes, events, generated code."""
