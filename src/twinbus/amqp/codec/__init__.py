"""Encodes and decodes AMQP 1.0 types, performatives, frames and message sections. No sockets, no clocks."""
