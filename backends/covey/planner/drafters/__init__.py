"""Who drafts for requests that name nobody."""
