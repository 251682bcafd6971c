"""The paired client, its receivers and its status: the API that applications use."""

from __future__ import annotations
