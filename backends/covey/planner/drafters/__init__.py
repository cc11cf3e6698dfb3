"""The choice of drafters for requests that name none."""
