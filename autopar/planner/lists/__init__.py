"""List schedules: one pass over the tasks."""
