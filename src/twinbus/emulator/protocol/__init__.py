"""The server side of AMQP: connections, sessions, links and their request nodes."""
