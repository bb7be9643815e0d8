// The head of a hand-off frame: 16 bytes of secret, then what came over the wire.
#include "common/wire/frame.h"
#include "tests/fuzz/fuzz_util.h"

namespace baton {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kFrameSecretBytes) return 0;
  const std::string_view input = FuzzText(data, size);
  const FrameSecret secret = *MakeFrameSecret(input.substr(0, kFrameSecretBytes));
  const std::string_view bytes = input.substr(kFrameSecretBytes);
  const auto head = ParseFrameHead(bytes);
  if (!head.ok()) {
    CheckError(head.status());
    FUZZ_CHECK(!VerifyMac(bytes, secret).ok());
    return 0;
  }
  FUZZ_CHECK(head->head_bytes <= bytes.size());
  FUZZ_CHECK(head->head_bytes == kFrameHeaderBytes + head->chunks.size() * kChunkEntryBytes);
  uint64_t next = 0;
  for (const FrameChunk& chunk : head->chunks) {
    FUZZ_CHECK(chunk.offset == next);
    next += chunk.length;
  }
  FUZZ_CHECK(next == head->header.payload_bytes && next <= kMaxFramePayloadBytes);

  // What was read can be written, reads back the same, and differs from it in the MAC at most.
  const auto encoded = EncodeFrameHead(head->header, head->chunks, secret);
  FUZZ_CHECK(encoded.ok() && encoded->size() == head->head_bytes);
  const auto again = ParseFrameHead(*encoded);
  FUZZ_CHECK(again.ok() && again->header == head->header && again->chunks == head->chunks);
  FUZZ_CHECK(VerifyMac(*encoded, secret).ok());
  FUZZ_CHECK(VerifyMac(bytes, secret).ok() == (bytes.substr(0, head->head_bytes) == *encoded));
  if (VerifyPayload(head->header, bytes.substr(head->head_bytes)).ok()) {
    FUZZ_CHECK(bytes.size() - head->head_bytes == head->header.payload_bytes);
  }
  return 0;
}

}  // namespace baton
