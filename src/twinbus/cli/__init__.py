"""The command line: `twinbus …`."""
