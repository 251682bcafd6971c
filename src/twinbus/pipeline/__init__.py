"""The data pipeline: what the ledger says about cost, arrival and outages."""
