"""Load generation and benches for a Covey server; never imported by the server itself."""
