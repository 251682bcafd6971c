"""Subscription rules: filters that select messages and actions that change them."""

from __future__ import annotations
