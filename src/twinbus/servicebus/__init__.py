"""The Service Bus data model: descriptions, bounds, paths, durations and rules."""
