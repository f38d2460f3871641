"""The instance of a problem, its simulator, and what schedules are made of."""
