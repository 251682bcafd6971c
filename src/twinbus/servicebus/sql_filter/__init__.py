"""The SQL of subscription filters and actions: tokens, parser and operators."""
