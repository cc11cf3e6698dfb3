"""Running and waiting requests, their admission, and a round as a value. Knows no models."""
