"""Which messages a subscription gets, and what is changed in them: filters, actions and the SQL they are written in."""

from __future__ import annotations
