"""A trained model in use: batches filled and taken back, searches, continuations, labels."""
