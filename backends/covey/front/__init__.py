"""The process that untrusted callers reach. It serves the public models by Triton's HTTP and gRPC protocols and
OpenAI's API.

A request is bounded before it is parsed, decoded into plain values, checked against the table of public fields, and
rebuilt as a new message to `covey`. None of its bytes go on. The front knows no secret of the server.

__main__.py   serves both ports until it is told to stop
  HTTP        http_protocol.py and connection_limit.py bound what comes; http_app.py and openai/routes.py have the
              routes, http_calls.py admits and answers one POST; http_bodies.py or openai/generation.py read its body
  gRPC        grpc_service.py and grpc_bodies.py
  both        inference_request.py checks the request; gateway.py sends it on and returns the chunks of its answer;
              upstream.py calls tritonserver like a client (`covey_client.async_client`)
  traces      spans.py
  limits      admission.py, keys.py, proxies.py, fair_queue.py
"""
