"""Text in, numbers out: the measures of a task's outputs, one file each; no model is known here."""
