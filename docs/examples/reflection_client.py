"""The same without generated stubs: messages come from server reflection.

pip install grpcio-reflection; python reflection_client.py [host:port]
"""
import sys

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

channel = grpc.insecure_channel(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8090")
pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
method = pool.FindServiceByName("baton.v1.Inference").FindMethodByName("Generate")
Request, Event = GetMessageClass(method.input_type), GetMessageClass(method.output_type)

generate = channel.unary_stream("/baton.v1.Inference/Generate", Request.SerializeToString, Event.FromString)
request = Request(text="The capital of France is", sampling={"temperature": 0}, stop={"max_tokens": 16})
for event in generate(request, timeout=60):
    print(event.delta.text, end="", flush=True)
print()
