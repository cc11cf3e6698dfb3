"""Bandits over drafters, one for each request: small files, told what a round brought and asked who drafts next."""
