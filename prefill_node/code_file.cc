#include "prefill_node/code_file.h"

#include <xxhash.h>

#include "common/base/strings.h"
#include "common/prefix_hash/space.h"

namespace baton {
namespace {

constexpr std::string_view kMagic = "BTNB";
constexpr std::uint16_t kVersion = 1;
constexpr std::string_view kSuffix = ".code";

constexpr std::size_t kAtVersion = 4;
constexpr std::size_t kAtSpaceBytes = 6;
constexpr std::size_t kAtCodeBytes = 8;
constexpr std::size_t kAtBlock = 16;
constexpr std::size_t kAtSpace = 32;
constexpr std::size_t kChecksumBytes = 8;
constexpr std::size_t kHexDigits = 32;

void Append(std::string& out, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

std::uint64_t Get(std::string_view from, std::size_t at, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(from[at + i])} << (8 * i);
  }
  return value;
}

std::string_view BytesOf(const BlockHash& block) {
  return {reinterpret_cast<const char*>(block.bytes.data()), block.bytes.size()};
}

}  // namespace

CodeFileKey MakeCodeFileKey(const BlockHash& block, std::string_view space) {
  return {block, *BlockHash::FromHex(ContentDigest(space))};
}

std::string CodeFileName(const CodeFileKey& key) {
  return Cat(key.first.Hex(), "-", key.second.Hex(), kSuffix);
}

std::optional<CodeFileKey> ParseCodeFileName(std::string_view name) {
  if (name.size() != 2 * kHexDigits + 1 + kSuffix.size()) return std::nullopt;
  const auto block = BlockHash::FromHex(name.substr(0, kHexDigits));
  const auto space = BlockHash::FromHex(name.substr(kHexDigits + 1, kHexDigits));
  if (!block.ok() || !space.ok()) return std::nullopt;
  const CodeFileKey key(*block, *space);
  return CodeFileName(key) == name ? std::optional(key) : std::nullopt;
}

std::size_t CodeFileBytes(std::string_view space, std::size_t code_bytes) {
  return kAtSpace + space.size() + code_bytes + kChecksumBytes;
}

std::string EncodeCodeFile(const BlockHash& block, std::string_view space,
                           absl::Span<const std::byte> codes) {
  std::string file;
  file.reserve(CodeFileBytes(space, codes.size()));
  file += kMagic;
  Append(file, kVersion, 2);
  Append(file, space.size(), 2);
  Append(file, codes.size(), 8);
  file += BytesOf(block);
  file += space;
  file.append(reinterpret_cast<const char*>(codes.data()), codes.size());
  Append(file, XXH3_64bits(file.data(), file.size()), kChecksumBytes);
  return file;
}

absl::StatusOr<std::string_view> ParseCodeFile(std::string_view file, const BlockHash& block,
                                               std::string_view space, std::size_t code_bytes) {
  const auto bad = [](std::string_view what) { return absl::DataLossError(AbslView(what)); };
  if (file.size() != CodeFileBytes(space, code_bytes)) {
    return bad(Cat(file.size(), " bytes, should be ", CodeFileBytes(space, code_bytes)));
  }
  if (file.substr(0, kMagic.size()) != kMagic) return bad("not a file of codes");
  if (const std::uint64_t version = Get(file, kAtVersion, 2); version != kVersion) {
    return bad(Cat("version ", version, ", should be ", kVersion));
  }
  const std::size_t end = file.size() - kChecksumBytes;
  if (Get(file, end, kChecksumBytes) != XXH3_64bits(file.data(), end)) {
    return bad("wrong checksum");
  }
  if (Get(file, kAtSpaceBytes, 2) != space.size() || Get(file, kAtCodeBytes, 8) != code_bytes ||
      file.substr(kAtBlock, block.bytes.size()) != BytesOf(block) ||
      file.substr(kAtSpace, space.size()) != space) {
    return bad("codes of another block or space");
  }
  return file.substr(kAtSpace + space.size(), code_bytes);
}

}  // namespace baton
