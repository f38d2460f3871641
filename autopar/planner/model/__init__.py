"""The instance, its simulator, and the building blocks of schedules."""
