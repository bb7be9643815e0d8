// The bytes of one hand-off frame: header, chunk table, payload. docs/wire_format.md has the
// offsets, the order of the checks and what a receiver does when one fails. Bytes only: no
// transport, no threads; all functions are pure.
//
//   std::string head = *EncodeFrameHead(header, chunks, secret);   // header + chunk table
//   transport.Send({head, payload});                               // payload may live elsewhere
//   ...
//   BATON_ASSIGN_OR_RETURN(FrameHead got, ParseFrameHead(bytes));  // sizes and limits
//   BATON_RETURN_IF_ERROR(VerifyMac(bytes, secret));               // is it for this transfer?
//   BATON_RETURN_IF_ERROR(VerifyPayload(got, payload));            // did it arrive intact?
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton {

inline constexpr uint16_t kFrameVersion = 1;
inline constexpr size_t kFrameHeaderBytes = 80;
inline constexpr size_t kChunkEntryBytes = 24;
inline constexpr size_t kFrameSecretBytes = 16;

// Limits checked before anything is used or allocated.
inline constexpr uint32_t kMaxFrameChunks = 4096;
inline constexpr uint64_t kMaxFramePayloadBytes = 64ull << 20;
inline constexpr uint32_t kMaxFrameLayers = 1024;
inline constexpr uint32_t kMaxFrameTokens = 4u << 20;  // largest token_end
inline constexpr uint32_t kMaxTransferFrames = 1u << 20;
inline constexpr uint32_t kMaxFrameKvHeads = 1024;
inline constexpr size_t kMaxFrameHeadBytes =
    kFrameHeaderBytes + size_t{kMaxFrameChunks} * kChunkEntryBytes;

enum class FrameKind : uint16_t {
  kRawKv = 1,   // rows of K and V in the layout of the agreed space
  kError = 2,   // payload: UTF-8 message; the transfer is over
  kQ4Kv = 3,    // 4-bit codes of K and V with their scales
  kCodes = 4,   // a codec's codes of whole blocks of 64 tokens
  kStream = 5,  // rows of the residual stream that enters the layer
};

enum class ChunkComponent : uint32_t {
  kKey = 1,    // K, rotated
  kValue = 2,  // V
  kText = 3,   // message of a kError frame
  kCode = 4,   // codes, one chunk for all heads
  kRows = 5,   // rows of a stream, one chunk
};

struct FrameHeader {
  FrameKind kind = FrameKind::kRawKv;
  uint64_t transfer_id = 0;
  uint32_t generation = 0;
  uint32_t layer = 0;
  uint32_t token_begin = 0;  // [token_begin, token_end)
  uint32_t token_end = 0;
  uint32_t sequence = 0;      // 0-based number in the transfer
  uint32_t total_frames = 0;  // in the transfer; 0: the sender does not know yet
  uint64_t payload_bytes = 0;
  uint64_t payload_hash = 0;  // XXH3-64 of the payload; see HashPayload

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

// One contiguous piece of the payload. Pieces tile the payload in order: no gap, no overlap.
struct FrameChunk {
  uint32_t kv_head = 0;
  ChunkComponent component = ChunkComponent::kKey;
  uint64_t offset = 0;  // in the payload, bytes
  uint64_t length = 0;  // bytes

  friend bool operator==(const FrameChunk&, const FrameChunk&) = default;
};

struct FrameHead {
  FrameHeader header;
  std::vector<FrameChunk> chunks;
  size_t head_bytes = 0;  // header + chunk table; the payload starts here if it follows
};

using FrameSecret = std::array<uint8_t, kFrameSecretBytes>;
// INVALID_ARGUMENT unless exactly 16 bytes.
absl::StatusOr<FrameSecret> MakeFrameSecret(std::string_view bytes);

// XXH3-64 over the pieces as if they were one buffer.
uint64_t HashPayload(absl::Span<const std::string_view> pieces);
uint64_t HashPayload(std::string_view payload);

// Header and chunk table, MAC filled in. `header.payload_bytes` and `payload_hash` are the
// caller's. INVALID_ARGUMENT naming the field for anything ParseFrameHead would refuse.
absl::StatusOr<std::string> EncodeFrameHead(const FrameHeader& header,
                                            absl::Span<const FrameChunk> chunks,
                                            const FrameSecret& secret);

// Reads the head at the start of `bytes` (what follows it is ignored). Checks every field against
// the limits above, and that the chunks tile the payload. Errors name the field: DATA_LOSS for a
// truncated head or wrong magic, UNIMPLEMENTED for another version, INVALID_ARGUMENT for the rest.
// Says nothing about authenticity: VerifyMac does.
absl::StatusOr<FrameHead> ParseFrameHead(std::string_view bytes);

// Is the head (as parsed from `bytes`) signed by this transfer's secret? UNAUTHENTICATED if not.
// The MAC covers header and chunk table; comparison is constant-time.
absl::Status VerifyMac(std::string_view bytes, const FrameSecret& secret);

// DATA_LOSS when length or hash differ from the head's.
absl::Status VerifyPayload(const FrameHeader& header, std::string_view payload);
absl::Status VerifyPayload(const FrameHeader& header, absl::Span<const std::string_view> pieces);

}  // namespace baton
