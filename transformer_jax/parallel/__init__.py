"""How a step runs on many devices and in many processes."""
