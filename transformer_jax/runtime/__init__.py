# SPDX-License-Identifier: Apache-2.0
"""Services of the machine and the process: devices, memory, files, processes, preemption."""
