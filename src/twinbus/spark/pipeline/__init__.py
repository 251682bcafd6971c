"""Runs of the pipeline: find what has changed in a ledger, and replace those days of the result tables."""
