"""`make live`: a drill against two real namespaces, for everything about the service that an emulation cannot prove."""

from __future__ import annotations
