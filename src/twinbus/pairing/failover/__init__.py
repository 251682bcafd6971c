"""Failover: when sends to an entity leave the primary, and when they come back."""
