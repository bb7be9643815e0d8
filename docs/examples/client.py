"""Streams an answer over gRPC: python client.py [host:port]

Its README says how the stubs are generated.
"""
import sys

import grpc
import router_pb2
import router_pb2_grpc

channel = grpc.insecure_channel(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8090")
stub = router_pb2_grpc.InferenceStub(channel)
model = stub.ListModels(router_pb2.ListModelsRequest()).models[0].name

request = router_pb2.GenerateRequest(model=model, want_timing=True)
request.chat.messages.add(role="user", content="What is the capital of France?")
request.sampling.temperature = 0
request.stop.max_tokens = 48
for event in stub.Generate(request, timeout=60):
    if event.HasField("delta"):
        print(event.delta.text, end="", flush=True)
    else:
        timing = event.finished.timing
        print(f"\n[{event.finished.usage.completion_tokens} tokens,",
              f"first after {(timing.router_s + timing.ttft_s) * 1e3:.0f} ms]")
