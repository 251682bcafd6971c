"""AMQP 1.0 as plain functions on bytes: types, performatives, frames and message sections. No sockets."""
