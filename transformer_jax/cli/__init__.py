# SPDX-License-Identifier: Apache-2.0
"""The command line. Results go to stdout, log lines and progress to stderr."""
