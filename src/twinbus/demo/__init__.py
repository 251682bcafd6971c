"""The demo: a real outage of a local namespace, from first failure to verdict."""

from __future__ import annotations
