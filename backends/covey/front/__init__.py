"""The process that untrusted callers reach: Triton's HTTP and gRPC protocols, and OpenAI's API, for the public models
alone.

A request is bounded before it is parsed, decoded into plain values, checked against the table of public fields, and
built anew as a message of our own to `covey`: none of its bytes go on. Knows no secret of the server's.

__main__.py   serves both ports until it is told to stop
  HTTP        http_protocol.py and connection_limit.py bound what comes; http_app.py and openai/routes.py have the
              routes, http_calls.py admits and answers one POST; http_bodies.py or openai/generation.py read its body
  gRPC        grpc_service.py and grpc_bodies.py
  both        inference_request.py checks the request; gateway.py sends it on, and gives its answer's chunks back;
              upstream.py is the server behind, asked as a client asks it (`covey_client.async_client`)
  limits      admission.py, keys.py, proxies.py, fair_queue.py
"""
