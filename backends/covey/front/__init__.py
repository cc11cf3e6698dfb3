"""The process that untrusted callers reach: Triton's HTTP and gRPC protocols, and OpenAI's API, for the public models
alone.

A request is bounded before it is parsed, decoded into plain values, checked against the table of public fields, and
built anew as a message of our own to `covey`: none of its bytes go on. Knows no secret of the server's.
"""
