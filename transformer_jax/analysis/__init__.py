"""Looking at runs and models: figures from what they left or compute, never a run itself."""
