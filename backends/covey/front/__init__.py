"""The process that strangers reach: Triton's protocols over HTTP and gRPC for the public models, and nothing else.

A request is bounded before it is parsed, decoded into plain values, checked against the table of public fields, and
built anew as a message of our own to `covey`: none of its bytes go on. Knows no secret of the server's.
"""
