"""An asyncio AMQP client for Service Bus: connection, sessions, links, tokens and management requests."""
