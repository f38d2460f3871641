"""The instance, its simulator, and the parts that schedules are made of."""
