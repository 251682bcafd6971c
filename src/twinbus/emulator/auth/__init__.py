"""Access policies, tokens, the rights they grant, and the TLS certificate."""
