"""AMQP 1.0: a pure codec on bytes, and an asyncio client built on it."""
