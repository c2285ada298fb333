"""Services of the machine and the process: devices, memory, files, processes, preemption."""
