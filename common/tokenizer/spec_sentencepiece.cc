// SentencePiece's .model file (a protobuf ModelProto) -> TokenizerSpec. The few fields that matter
// are read from the wire format; sentencepiece_model.proto names them.
#include <cmath>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/tokenizer_spec.h"
#include "common/tokenizer/utf8.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace baton {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr size_t kMaxModelBytes = size_t{256} << 20;

enum PieceType { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct Piece {
  std::string text;
  float score = 0;
  uint64_t type = kNormal;
};

struct ModelFile {
  std::vector<Piece> pieces;
  uint64_t model_type = 1;
  bool byte_fallback = false;
  bool whitespace_suffix = false;
  int64_t bos_id = 1;
  int64_t eos_id = 2;
  std::string normalizer = "identity";
  bool charsmap = false;
  bool dummy_prefix = true;
  bool collapse_spaces = true;
  bool escape_spaces = true;
  bool denormalizes = false;
};

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(Cat("SentencePiece model: ", what));
}

absl::Status Unsupported(std::string_view what) {
  return absl::UnimplementedError(Cat("SentencePiece model: ", what));
}

// The value of one field, whatever its type; what isn't asked for is skipped.
class Field {
 public:
  Field(CodedInputStream* in, uint32_t tag) : in_(in), tag_(tag) {}

  int number() const { return WireFormatLite::GetTagFieldNumber(tag_); }

  bool Skip() { return WireFormatLite::SkipField(in_, tag_); }

  bool Number(uint64_t* value) {
    return Is(WireFormatLite::WIRETYPE_VARINT) && in_->ReadVarint64(value);
  }
  bool Flag(bool* value) {
    uint64_t number = 0;
    if (!Number(&number)) return false;
    *value = number != 0;
    return true;
  }
  // int32 fields: negative values are stored in 64 bits.
  bool Int(int64_t* value) {
    uint64_t number = 0;
    if (!Number(&number)) return false;
    *value = static_cast<int64_t>(number);
    return true;
  }
  bool Float(float* value) {
    uint32_t bits = 0;
    if (!Is(WireFormatLite::WIRETYPE_FIXED32) || !in_->ReadLittleEndian32(&bits)) return false;
    *value = WireFormatLite::DecodeFloat(bits);
    return true;
  }
  bool Text(std::string* value) {
    int size = 0;
    return Length(&size) && in_->ReadString(value, size);
  }
  // Calls `read` for each field of the message.
  template <typename Fn>
  bool Message(const Fn& read) {
    int size = 0;
    if (!Length(&size)) return false;
    const auto limit = in_->PushLimit(size);
    const bool ok = ReadFields(in_, read);
    in_->PopLimit(limit);
    return ok;
  }

  template <typename Fn>
  static bool ReadFields(CodedInputStream* in, const Fn& read) {
    while (in->BytesUntilLimit() != 0) {
      const uint32_t tag = in->ReadTag();
      if (tag == 0) return false;
      Field field(in, tag);
      if (!read(field)) return false;
    }
    return true;
  }

 private:
  bool Is(WireFormatLite::WireType type) const {
    return WireFormatLite::GetTagWireType(tag_) == type;
  }
  // A length that what is left can hold.
  bool Length(int* size) {
    return Is(WireFormatLite::WIRETYPE_LENGTH_DELIMITED) && in_->ReadVarintSizeAsInt(size) &&
           *size <= in_->BytesUntilLimit();
  }

  CodedInputStream* in_;
  const uint32_t tag_;
};

bool ReadPiece(Field& field, Piece* piece) {
  switch (field.number()) {
    case 1:
      return field.Text(&piece->text);
    case 2:
      return field.Float(&piece->score);
    case 3:
      return field.Number(&piece->type);
    default:
      return field.Skip();
  }
}

bool ReadTrainer(Field& field, ModelFile* model) {
  switch (field.number()) {
    case 3:
      return field.Number(&model->model_type);
    case 24:
      return field.Flag(&model->whitespace_suffix);
    case 35:
      return field.Flag(&model->byte_fallback);
    case 41:
      return field.Int(&model->bos_id);
    case 42:
      return field.Int(&model->eos_id);
    default:
      return field.Skip();
  }
}

bool ReadNormalizer(Field& field, ModelFile* model) {
  std::string bytes;
  switch (field.number()) {
    case 1:
      return field.Text(&model->normalizer);
    case 2:
      if (!field.Text(&bytes)) return false;
      model->charsmap = !bytes.empty();
      return true;
    case 3:
      return field.Flag(&model->dummy_prefix);
    case 4:
      return field.Flag(&model->collapse_spaces);
    case 5:
      return field.Flag(&model->escape_spaces);
    default:
      return field.Skip();
  }
}

bool ReadDenormalizer(Field& field, ModelFile* model) {
  if (field.number() != 2) return field.Skip();
  std::string bytes;
  if (!field.Text(&bytes)) return false;
  model->denormalizes = !bytes.empty();
  return true;
}

bool ReadModel(CodedInputStream* in, ModelFile* model) {
  return Field::ReadFields(in, [&](Field& field) {
    switch (field.number()) {
      case 1:
        model->pieces.emplace_back();
        return field.Message([&](Field& inner) { return ReadPiece(inner, &model->pieces.back()); });
      case 2:
        return field.Message([&](Field& inner) { return ReadTrainer(inner, model); });
      case 3:
        return field.Message([&](Field& inner) { return ReadNormalizer(inner, model); });
      case 5:
        return field.Message([&](Field& inner) { return ReadDenormalizer(inner, model); });
      default:
        return field.Skip();
    }
  });
}

absl::Status CheckSupported(const ModelFile& model) {
  if (model.model_type != 2) {
    constexpr std::array<std::string_view, 5> kNames = {"?", "unigram", "bpe", "word", "char"};
    const auto name = model.model_type < kNames.size() ? kNames[model.model_type] : "?";
    return Unsupported(
        Cat("model type '", name, "' (", model.model_type, ") is not supported (bpe is)"));
  }
  if (model.charsmap || (!model.normalizer.empty() && model.normalizer != "identity")) {
    return Unsupported(Cat("normalizer '", model.normalizer, "' is not supported (identity is)"));
  }
  if (model.denormalizes) return Unsupported("a denormalizer is not supported");
  if (!model.escape_spaces) return Unsupported("escape_whitespaces = false is not supported");
  if (model.whitespace_suffix) {
    return Unsupported("treat_whitespace_as_suffix is not supported");
  }
  return absl::OkStatus();
}

absl::Status AddPiece(Piece piece, TokenizerSpec* spec) {
  const auto id = static_cast<int32_t>(spec->tokens.size());
  if (piece.text.empty() || piece.text.size() > kMaxPieceBytes) {
    return Malformed(
        Cat("piece ", id, " has ", piece.text.size(), " bytes, must have 1 to ", kMaxPieceBytes));
  }
  if (FirstInvalidUtf8(piece.text)) return Malformed(Cat("piece ", id, " is not UTF-8"));
  if (!std::isfinite(piece.score)) return Malformed(Cat("piece ", id, " has no finite score"));
  AddedToken added;
  added.id = id;
  added.content = piece.text;
  switch (piece.type) {
    case kNormal:
      break;
    case kUnknown:
      if (spec->unk_id)
        return Malformed(Cat("pieces ", *spec->unk_id, " and ", id, " are unknown"));
      spec->unk_id = id;
      [[fallthrough]];
    case kControl:
      added.special = true;
      spec->added.push_back(std::move(added));
      break;
    case kUserDefined:
      added.normalized = true;
      spec->added.push_back(std::move(added));
      break;
    case kUnused:
      return Unsupported(Cat("piece ", id, " ('", piece.text, "') is of type unused"));
    case kByte:
      if (!ByteOfToken(piece.text)) {
        return Malformed(Cat("byte piece ", id, " is '", piece.text, "', must be like <0x0A>"));
      }
      spec->byte_fallback = true;
      break;
    default:
      return Malformed(Cat("piece ", id, " has type ", piece.type, ", must be 1 to 6"));
  }
  spec->tokens.push_back(std::move(piece.text));
  spec->scores.push_back(piece.score);
  return absl::OkStatus();
}

std::optional<int32_t> ControlId(int64_t id, const TokenizerSpec& spec) {
  for (const AddedToken& token : spec.added) {
    if (token.id == id && token.special) return token.id;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<TokenizerSpec> SpecFromSentencePiece(std::string_view bytes,
                                                    std::string_view tokenizer_config_json) {
  if (bytes.size() > kMaxModelBytes) {
    return Malformed(Cat(bytes.size(), " bytes, more than ", kMaxModelBytes));
  }
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                      static_cast<int>(bytes.size()));
  in.PushLimit(static_cast<int>(bytes.size()));
  ModelFile model;
  if (!ReadModel(&in, &model)) {
    return Malformed(Cat("broken at byte ", in.CurrentPosition(), " of ", bytes.size()));
  }
  if (model.pieces.empty() || model.pieces.size() > static_cast<size_t>(kMaxVocab)) {
    return Malformed(Cat(model.pieces.size(), " pieces, must be 1 to ", kMaxVocab));
  }
  BATON_RETURN_IF_ERROR(CheckSupported(model));
  TokenizerSpec spec;
  for (Piece& piece : model.pieces) BATON_RETURN_IF_ERROR(AddPiece(std::move(piece), &spec));
  if (!spec.unk_id) return Malformed("no piece is of type unknown");
  if (model.byte_fallback && !spec.byte_fallback) {
    return Malformed("byte_fallback is set but no piece is of type byte");
  }
  ApplySentencePieceRules(model.dummy_prefix, model.collapse_spaces, &spec);
  spec.bos_id = ControlId(model.bos_id, spec);
  spec.eos_id = ControlId(model.eos_id, spec);
  spec.add_bos = spec.bos_id.has_value();
  BATON_RETURN_IF_ERROR(ApplyTokenizerConfig(tokenizer_config_json, /*with_added=*/true, &spec));
  return spec;
}

}  // namespace baton
