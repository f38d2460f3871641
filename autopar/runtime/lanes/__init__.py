"""What executes the steps of one lane."""
