"""The command line. Results go to stdout, log lines and progress to stderr."""
