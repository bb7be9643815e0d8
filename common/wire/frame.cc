#include "common/wire/frame.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton {
namespace {

constexpr char kMagic[4] = {'B', 'T', 'N', 'F'};

// Byte offsets in the header; docs/wire_format.md.
constexpr size_t kAtMagic = 0;
constexpr size_t kAtVersion = 4;
constexpr size_t kAtKind = 6;
constexpr size_t kAtTransfer = 8;
constexpr size_t kAtGeneration = 16;
constexpr size_t kAtLayer = 20;
constexpr size_t kAtTokenBegin = 24;
constexpr size_t kAtTokenEnd = 28;
constexpr size_t kAtSequence = 32;
constexpr size_t kAtTotal = 36;
constexpr size_t kAtChunks = 40;
constexpr size_t kAtReserved = 44;
constexpr size_t kAtPayloadBytes = 48;
constexpr size_t kAtPayloadHash = 56;
constexpr size_t kAtMac = 64;
constexpr size_t kMacBytes = 16;
static_assert(kAtMac + kMacBytes == kFrameHeaderBytes);

template <typename T>
void Put(std::string& out, size_t at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out[at + i] = static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xFF);
  }
}

template <typename T>
T Get(std::string_view bytes, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return static_cast<T>(value);
}

absl::Status Bad(std::string_view field, uint64_t value, std::string_view allowed) {
  return absl::InvalidArgumentError(
      fmt::format("frame: {}: {} is not allowed; allowed: {}", field, value, allowed));
}

bool IsKnown(FrameKind kind) {
  switch (kind) {
    case FrameKind::kRawKv:
    case FrameKind::kError:
    case FrameKind::kQ4Kv:
    case FrameKind::kCodes:
    case FrameKind::kStream:
      return true;
  }
  return false;
}

// What a chunk of such a frame may hold.
bool Holds(FrameKind kind, ChunkComponent component) {
  switch (kind) {
    case FrameKind::kRawKv:
    case FrameKind::kQ4Kv:
      return component == ChunkComponent::kKey || component == ChunkComponent::kValue;
    case FrameKind::kError:
      return component == ChunkComponent::kText;
    case FrameKind::kCodes:
      return component == ChunkComponent::kCode;
    case FrameKind::kStream:
      return component == ChunkComponent::kRows;
  }
  return false;
}
const char* ComponentsOf(FrameKind kind) {
  if (kind == FrameKind::kError) return "3 (text)";
  if (kind == FrameKind::kStream) return "5 (rows)";
  return kind == FrameKind::kCodes ? "4 (code)" : "1 (key), 2 (value)";
}

absl::Status CheckHeader(const FrameHeader& h, uint64_t chunk_count) {
  const bool data = h.kind != FrameKind::kError;
  if (!IsKnown(h.kind)) {
    return Bad("kind", static_cast<uint64_t>(h.kind),
               "1 (raw_kv), 2 (error), 3 (q4_kv), 4 (codes), 5 (stream)");
  }
  if (h.transfer_id == 0) return Bad("transfer_id", 0, "any number but 0");
  if (h.layer >= kMaxFrameLayers) {
    return Bad("layer", h.layer, fmt::format("below {}", kMaxFrameLayers));
  }
  if (h.token_end > kMaxFrameTokens) {
    return Bad("token_end", h.token_end, fmt::format("at most {}", kMaxFrameTokens));
  }
  if (h.token_begin > h.token_end || (data && h.token_begin == h.token_end)) {
    return Bad("token_begin", h.token_begin, fmt::format("below token_end ({})", h.token_end));
  }
  if (h.total_frames > kMaxTransferFrames) {
    return Bad("total_frames", h.total_frames, fmt::format("at most {}", kMaxTransferFrames));
  }
  if (h.sequence >= (h.total_frames == 0 ? kMaxTransferFrames : h.total_frames)) {
    return Bad("sequence", h.sequence, fmt::format("below total_frames ({})", h.total_frames));
  }
  if (chunk_count > kMaxFrameChunks || (data && chunk_count == 0)) {
    return Bad("chunk_count", chunk_count, fmt::format("1 to {}", kMaxFrameChunks));
  }
  if (h.payload_bytes > kMaxFramePayloadBytes || (data && h.payload_bytes == 0)) {
    return Bad("payload_bytes", h.payload_bytes, fmt::format("1 to {}", kMaxFramePayloadBytes));
  }
  return absl::OkStatus();
}

// Chunks tile the payload: the first starts at 0, each at the end of the one before it, and the
// last ends with the payload. Sums can't overflow: each length is at most the payload's.
absl::Status CheckChunks(const FrameHeader& header, absl::Span<const FrameChunk> chunks) {
  uint64_t next = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const FrameChunk& chunk = chunks[i];
    const auto name = [i](const char* field) { return fmt::format("chunk[{}].{}", i, field); };
    if (chunk.kv_head >= kMaxFrameKvHeads) {
      return Bad(name("kv_head"), chunk.kv_head, fmt::format("below {}", kMaxFrameKvHeads));
    }
    if (!Holds(header.kind, chunk.component)) {
      return Bad(name("component"), static_cast<uint64_t>(chunk.component),
                 ComponentsOf(header.kind));
    }
    if (chunk.offset != next) {
      return Bad(name("offset"), chunk.offset, fmt::format("{} (chunks tile the payload)", next));
    }
    if (chunk.length == 0 || chunk.length > header.payload_bytes - next) {
      return Bad(name("length"), chunk.length, fmt::format("1 to {}", header.payload_bytes - next));
    }
    next += chunk.length;
  }
  if (next != header.payload_bytes) {
    return absl::InvalidArgumentError(fmt::format(
        "frame: payload_bytes: {} but the chunks cover {}", header.payload_bytes, next));
  }
  return absl::OkStatus();
}

// XXH3-128 over secret, header up to the MAC, chunk table, secret again. `head` is whole.
std::array<char, kMacBytes> ComputeMac(std::string_view head, const FrameSecret& secret) {
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                 &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  XXH3_128bits_update(state.get(), secret.data(), secret.size());
  XXH3_128bits_update(state.get(), head.data(), kAtMac);
  XXH3_128bits_update(state.get(), head.data() + kFrameHeaderBytes,
                      head.size() - kFrameHeaderBytes);
  XXH3_128bits_update(state.get(), secret.data(), secret.size());
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state.get()));
  std::array<char, kMacBytes> mac;
  std::memcpy(mac.data(), canonical.digest, kMacBytes);
  return mac;
}

// Size of the head that starts `bytes`, from a chunk count within the limit.
absl::StatusOr<size_t> HeadBytes(std::string_view bytes) {
  if (bytes.size() < kFrameHeaderBytes) {
    return absl::DataLossError(fmt::format("frame: header: {} bytes where {} are needed",
                                           bytes.size(), kFrameHeaderBytes));
  }
  if (std::memcmp(bytes.data() + kAtMagic, kMagic, sizeof(kMagic)) != 0) {
    return absl::DataLossError("frame: magic: not a Baton frame");
  }
  if (const auto version = Get<uint16_t>(bytes, kAtVersion); version != kFrameVersion) {
    return absl::UnimplementedError(
        fmt::format("frame: version: {}, this build reads {}", version, kFrameVersion));
  }
  const auto chunks = Get<uint32_t>(bytes, kAtChunks);
  if (chunks > kMaxFrameChunks) {
    return Bad("chunk_count", chunks, fmt::format("at most {}", kMaxFrameChunks));
  }
  const size_t needed = kFrameHeaderBytes + size_t{chunks} * kChunkEntryBytes;
  if (bytes.size() < needed) {
    return absl::DataLossError(fmt::format("frame: chunk table: {} bytes where {} are needed",
                                           bytes.size() - kFrameHeaderBytes,
                                           needed - kFrameHeaderBytes));
  }
  return needed;
}

}  // namespace

absl::StatusOr<FrameSecret> MakeFrameSecret(std::string_view bytes) {
  if (bytes.size() != kFrameSecretBytes) {
    return absl::InvalidArgumentError(fmt::format("frame: secret: {} bytes where {} are needed",
                                                  bytes.size(), kFrameSecretBytes));
  }
  FrameSecret secret;
  std::memcpy(secret.data(), bytes.data(), secret.size());
  return secret;
}

uint64_t HashPayload(std::string_view payload) {
  return XXH3_64bits(payload.data(), payload.size());
}

uint64_t HashPayload(absl::Span<const std::string_view> pieces) {
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                 &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for (std::string_view piece : pieces) {
    XXH3_64bits_update(state.get(), piece.data(), piece.size());
  }
  return XXH3_64bits_digest(state.get());
}

absl::StatusOr<std::string> EncodeFrameHead(const FrameHeader& header,
                                            absl::Span<const FrameChunk> chunks,
                                            const FrameSecret& secret) {
  BATON_RETURN_IF_ERROR(CheckHeader(header, chunks.size()));
  BATON_RETURN_IF_ERROR(CheckChunks(header, chunks));
  std::string out(kFrameHeaderBytes + chunks.size() * kChunkEntryBytes, '\0');
  std::memcpy(out.data() + kAtMagic, kMagic, sizeof(kMagic));
  Put<uint16_t>(out, kAtVersion, kFrameVersion);
  Put<uint16_t>(out, kAtKind, static_cast<uint16_t>(header.kind));
  Put<uint64_t>(out, kAtTransfer, header.transfer_id);
  Put<uint32_t>(out, kAtGeneration, header.generation);
  Put<uint32_t>(out, kAtLayer, header.layer);
  Put<uint32_t>(out, kAtTokenBegin, header.token_begin);
  Put<uint32_t>(out, kAtTokenEnd, header.token_end);
  Put<uint32_t>(out, kAtSequence, header.sequence);
  Put<uint32_t>(out, kAtTotal, header.total_frames);
  Put<uint32_t>(out, kAtChunks, static_cast<uint32_t>(chunks.size()));
  Put<uint32_t>(out, kAtReserved, 0);
  Put<uint64_t>(out, kAtPayloadBytes, header.payload_bytes);
  Put<uint64_t>(out, kAtPayloadHash, header.payload_hash);
  size_t at = kFrameHeaderBytes;
  for (const FrameChunk& chunk : chunks) {
    Put<uint32_t>(out, at, chunk.kv_head);
    Put<uint32_t>(out, at + 4, static_cast<uint32_t>(chunk.component));
    Put<uint64_t>(out, at + 8, chunk.offset);
    Put<uint64_t>(out, at + 16, chunk.length);
    at += kChunkEntryBytes;
  }
  const std::array<char, kMacBytes> mac = ComputeMac(out, secret);
  std::memcpy(out.data() + kAtMac, mac.data(), mac.size());
  return out;
}

absl::StatusOr<FrameHead> ParseFrameHead(std::string_view bytes) {
  FrameHead head;
  BATON_ASSIGN_OR_RETURN(head.head_bytes, HeadBytes(bytes));
  FrameHeader& header = head.header;
  header.kind = static_cast<FrameKind>(Get<uint16_t>(bytes, kAtKind));
  header.transfer_id = Get<uint64_t>(bytes, kAtTransfer);
  header.generation = Get<uint32_t>(bytes, kAtGeneration);
  header.layer = Get<uint32_t>(bytes, kAtLayer);
  header.token_begin = Get<uint32_t>(bytes, kAtTokenBegin);
  header.token_end = Get<uint32_t>(bytes, kAtTokenEnd);
  header.sequence = Get<uint32_t>(bytes, kAtSequence);
  header.total_frames = Get<uint32_t>(bytes, kAtTotal);
  header.payload_bytes = Get<uint64_t>(bytes, kAtPayloadBytes);
  header.payload_hash = Get<uint64_t>(bytes, kAtPayloadHash);
  const size_t chunk_count = (head.head_bytes - kFrameHeaderBytes) / kChunkEntryBytes;
  BATON_RETURN_IF_ERROR(CheckHeader(header, chunk_count));
  if (const auto reserved = Get<uint32_t>(bytes, kAtReserved); reserved != 0) {
    return Bad("reserved", reserved, "0");
  }
  head.chunks.reserve(chunk_count);
  for (size_t at = kFrameHeaderBytes; at < head.head_bytes; at += kChunkEntryBytes) {
    head.chunks.push_back({Get<uint32_t>(bytes, at),
                           static_cast<ChunkComponent>(Get<uint32_t>(bytes, at + 4)),
                           Get<uint64_t>(bytes, at + 8), Get<uint64_t>(bytes, at + 16)});
  }
  BATON_RETURN_IF_ERROR(CheckChunks(header, head.chunks));
  return head;
}

absl::Status VerifyMac(std::string_view bytes, const FrameSecret& secret) {
  BATON_ASSIGN_OR_RETURN(const size_t head_bytes, HeadBytes(bytes));
  const std::string_view head = bytes.substr(0, head_bytes);
  const std::array<char, kMacBytes> mac = ComputeMac(head, secret);
  if (ConstantTimeEquals(head.substr(kAtMac, kMacBytes), {mac.data(), mac.size()})) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError("frame: mac: not signed with this transfer's secret");
}

absl::Status VerifyPayload(const FrameHeader& header, absl::Span<const std::string_view> pieces) {
  uint64_t size = 0;
  for (std::string_view piece : pieces) size += piece.size();
  if (size != header.payload_bytes) {
    return absl::DataLossError(fmt::format("frame: payload: {} bytes where the header says {}",
                                           size, header.payload_bytes));
  }
  if (const uint64_t hash = HashPayload(pieces); hash != header.payload_hash) {
    return absl::DataLossError(
        fmt::format("frame: payload_hash: {:016x} where the header says "
                    "{:016x}",
                    hash, header.payload_hash));
  }
  return absl::OkStatus();
}

absl::Status VerifyPayload(const FrameHeader& header, std::string_view payload) {
  return VerifyPayload(header, absl::Span<const std::string_view>(&payload, 1));
}

}  // namespace baton
