"""The syphon on Spark: bounded slices of the same pumps that run in a process, planned from what is in the backlog."""
