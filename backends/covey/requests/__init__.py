"""The running and waiting requests, who is admitted, and a round as a value. Knows no models."""
