"""What the process asks of the machine: memory, compiled programs, the compiler, the device."""
