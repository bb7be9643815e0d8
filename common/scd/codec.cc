#include "common/scd/codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/weights/dequantize.h"
#include "common/weights/digest.h"
#include "common/weights/safetensors.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

constexpr std::string_view kFormat = "baton-codec";

template <typename T>
std::string_view BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::optional<CodeSource> ParseSource(std::string_view name) {
  for (const CodeSource source : {CodeSource::kHidden, CodeSource::kKv}) {
    if (name == CodeSourceName(source)) return source;
  }
  return std::nullopt;
}

std::int64_t LevelsOf(const std::vector<std::uint8_t>& bits) {
  std::int64_t levels = 0;
  for (const std::uint8_t b : bits) levels += std::int64_t{1} << b;
  return levels;
}

absl::Status Bad(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::Status CheckIdentity(const CodecIdentity& id) {
  struct Number {
    const char* name;
    std::int64_t value;
    std::int64_t limit;
  };
  for (const Number& n :
       {Number{"layers", id.layers, kMaxCodecLayers}, Number{"hidden", id.hidden, kMaxCodecWidth},
        Number{"kv_heads", id.kv_heads, kMaxCodecWidth},
        Number{"head_dim", id.head_dim, kMaxCodecWidth}}) {
    if (n.value < 1 || n.value > n.limit) {
      return Bad(Cat(n.name, ": ", n.value, "; allowed: 1 to ", n.limit));
    }
  }
  if (2 * id.kv_dim() > kMaxCodecWidth) {
    return Bad(Cat("kv_heads * head_dim: ", id.kv_dim(), "; allowed: up to ", kMaxCodecWidth / 2));
  }
  for (const auto& [name, digest] :
       {std::pair("producer_weights", id.producer_weights),
        std::pair("consumer_weights", id.consumer_weights), std::pair("tokenizer", id.tokenizer)}) {
    if (digest.empty()) return Bad(Cat(name, ": empty"));
  }
  return absl::OkStatus();
}

// Sizes first: nothing is looked at before it is known to be there.
absl::Status CheckSizes(const CodecLayer& layer, const CodecIdentity& id) {
  const std::int64_t rank = layer.rank();
  const bool native = layer.kind == LayerKind::kNative;
  if (native && rank != 0) return Bad(Cat("rank: ", rank, ", expected 0 of a native layer"));
  if (!native && (rank < 1 || rank > kMaxCodecRank)) {
    return Bad(Cat("rank: ", rank, "; allowed: 1 to ", kMaxCodecRank));
  }
  for (const std::uint8_t b : layer.bits) {
    if (std::find(std::begin(kCodeBits), std::end(kCodeBits), b) == std::end(kCodeBits)) {
      return Bad(Cat("bits: ", int{b}, "; allowed: 1, 2, 3, 4, 6, 8"));
    }
  }
  struct Field {
    const char* name;
    const std::vector<float>& values;
    std::int64_t expected;
  };
  const std::int64_t in = native ? 0 : id.source_width();
  const bool patch = layer.kind == LayerKind::kPatch;
  if (layer.kind != LayerKind::kReuse && id.source != CodeSource::kHidden) {
    return Bad(Cat("kind: ", LayerKindName(layer.kind), "; its codes are of source h"));
  }
  const std::int64_t out = id.decoded_width(layer.kind);
  const std::int64_t inner =
      patch && !(layer.mlp_in.empty() && layer.mlp_out.empty()) ? 2 * rank : 0;
  for (const Field& f :
       std::initializer_list<Field>{{"mean", layer.mean, in},
                                    {"encoder", layer.encoder, rank * in},
                                    {"importance", layer.importance, rank},
                                    {"levels", layer.levels, LevelsOf(layer.bits)},
                                    {"decoder", layer.decoder, out * rank},
                                    {"offset", layer.offset, out},
                                    {"mlp_in", layer.mlp_in, inner * rank},
                                    {"mlp_out", layer.mlp_out, id.hidden * inner}}) {
    if (static_cast<std::int64_t>(f.values.size()) != f.expected) {
      return Bad(Cat(f.name, ": ", f.values.size(), " numbers, expected ", f.expected));
    }
    if (!std::all_of(f.values.begin(), f.values.end(), [](float x) { return std::isfinite(x); })) {
      return Bad(Cat(f.name, ": not all numbers are finite"));
    }
  }
  return absl::OkStatus();
}

// At most one run: a stream layer, and native ones right behind it.
absl::Status CheckKinds(const Codec& codec) {
  const LayerRun run = codec.run();
  for (std::size_t l = 0; l < codec.layers.size(); ++l) {
    const LayerKind kind = codec.layers[l].kind;
    if ((kind == LayerKind::kStream || kind == LayerKind::kNative) &&
        !run.contains(static_cast<int>(l))) {
      return Bad(Cat(
          "layer ", l, ": kind: ", LayerKindName(kind), "; ",
          run.empty() ? "there is no run" : Cat("the run is that of layers ", LayerRunText(run))));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOrder(const CodecLayer& layer) {
  const auto& importance = layer.importance;
  if (!std::is_sorted(importance.rbegin(), importance.rend())) {
    return Bad("importance: does not fall");
  }
  if (!importance.empty() && !(importance.back() > 0)) return Bad("importance: not above 0");
  const float* levels = layer.levels.data();
  for (std::size_t i = 0; i < layer.bits.size(); ++i) {
    const float* end = levels + (std::size_t{1} << layer.bits[i]);
    if (std::adjacent_find(levels, end, std::greater_equal<>()) != end) {
      return Bad(Cat("levels: those of component ", i, " do not ascend"));
    }
    levels = end;
  }
  return absl::OkStatus();
}

std::string TensorName(std::size_t layer, std::string_view field) {
  return Cat("layers.", layer, ".", field);
}

struct LayerField {
  std::string_view name;
  std::vector<float> CodecLayer::*values;
  bool matrix = false;  // may be int8, with a scale for each row
};
constexpr LayerField kFields[] = {
    {"mean", &CodecLayer::mean},     {"encoder", &CodecLayer::encoder, true},
    {"levels", &CodecLayer::levels}, {"importance", &CodecLayer::importance},
    {"offset", &CodecLayer::offset}, {"decoder", &CodecLayer::decoder, true}};
// A patched layer has these or none.
constexpr LayerField kMlpFields[] = {{"mlp_in", &CodecLayer::mlp_in, true},
                                     {"mlp_out", &CodecLayer::mlp_out, true}};

std::vector<LayerField> FieldsOf(LayerKind kind, bool with_mlp) {
  if (kind == LayerKind::kNative) return {};
  std::vector<LayerField> fields(std::begin(kFields), std::end(kFields));
  if (with_mlp) fields.insert(fields.end(), std::begin(kMlpFields), std::end(kMlpFields));
  return fields;
}

// Of a matrix.
std::int64_t RowsOf(const LayerField& field, const CodecLayer& layer, const CodecIdentity& id) {
  if (field.values == &CodecLayer::encoder) return layer.rank();
  if (field.values == &CodecLayer::mlp_in) return 2 * layer.rank();
  return id.decoded_width(layer.kind);
}

// One row as scale * code, codes from -127 to 127.
struct Int8Row {
  float scale = 0;
  std::vector<std::int8_t> codes;

  explicit Int8Row(absl::Span<const float> row) {
    float largest = 0;
    for (const float x : row) largest = std::max(largest, std::abs(x));
    // Rounded up to 16 bits of mantissa: 127 times it is exact, so rounding twice changes nothing.
    scale = std::bit_cast<float>((std::bit_cast<std::uint32_t>(largest / 127) + 0xFFu) & ~0xFFu);
    for (const float x : row) {
      codes.push_back(scale > 0 ? static_cast<std::int8_t>(std::lround(x / scale)) : 0);
    }
  }
};

absl::StatusOr<std::string> Metadata(const SafetensorsFile& file, const std::string& key) {
  const auto it = file.metadata().find(key);
  if (it == file.metadata().end()) return Bad(Cat("metadata: no '", key, "'"));
  return it->second;
}

absl::StatusOr<std::int64_t> Number(const SafetensorsFile& file, const std::string& key) {
  BATON_ASSIGN_OR_RETURN(const std::string text, Metadata(file, key));
  std::int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return Bad(Cat("metadata: ", key, ": '", text, "' is not a whole number"));
  }
  return value;
}

absl::StatusOr<CodecIdentity> ReadIdentity(const SafetensorsFile& file) {
  BATON_ASSIGN_OR_RETURN(const std::string format, Metadata(file, "format"));
  if (format != kFormat) {
    return Bad(Cat("metadata: format: '", format, "', expected '", kFormat, "'"));
  }
  BATON_ASSIGN_OR_RETURN(const std::int64_t version, Number(file, "format_version"));
  if (version < 1 || version > kCodecVersion) {
    return absl::UnimplementedError(
        Cat("metadata: format_version: ", version, "; this build reads 1 to ", kCodecVersion));
  }
  CodecIdentity id;
  BATON_ASSIGN_OR_RETURN(id.producer_weights, Metadata(file, "producer_weights"));
  BATON_ASSIGN_OR_RETURN(id.consumer_weights, Metadata(file, "consumer_weights"));
  BATON_ASSIGN_OR_RETURN(id.tokenizer, Metadata(file, "tokenizer"));
  BATON_ASSIGN_OR_RETURN(const std::string source, Metadata(file, "source"));
  const auto parsed = ParseSource(source);
  if (!parsed) return Bad(Cat("metadata: source: '", source, "'; allowed: h, kv"));
  id.source = *parsed;
  BATON_ASSIGN_OR_RETURN(id.layers, Number(file, "layers"));
  BATON_ASSIGN_OR_RETURN(id.hidden, Number(file, "hidden"));
  BATON_ASSIGN_OR_RETURN(id.kv_heads, Number(file, "kv_heads"));
  BATON_ASSIGN_OR_RETURN(id.head_dim, Number(file, "head_dim"));
  BATON_RETURN_IF_ERROR(CheckIdentity(id));
  return id;
}

// "patch_layers" names some, ascending.
absl::Status ReadPatched(const SafetensorsFile& file, std::vector<LayerKind>& kinds) {
  BATON_ASSIGN_OR_RETURN(const std::string text, Metadata(file, "patch_layers"));
  const auto layers = static_cast<std::int64_t>(kinds.size());
  std::int64_t last = -1;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    std::int64_t layer = 0;
    if (!absl::SimpleAtoi(word, &layer) || layer <= last || layer >= layers) {
      return Bad(Cat("metadata: patch_layers: '", text, "' are not ascending layers of ", layers));
    }
    last = layer;
    kinds[static_cast<std::size_t>(layer)] = LayerKind::kPatch;
  }
  return absl::OkStatus();
}

// "run_layers" are the first and the last of a run, none of which is patched.
absl::Status ReadRun(const SafetensorsFile& file, std::vector<LayerKind>& kinds) {
  BATON_ASSIGN_OR_RETURN(const std::string text, Metadata(file, "run_layers"));
  const auto run = ParseLayerRun(text);
  if (!run.ok()) return Bad(Cat("metadata: run_layers: ", StdView(run.status().message())));
  if (run->end > static_cast<int>(kinds.size())) {
    return Bad(Cat("metadata: run_layers: '", text, "' are not layers of ", kinds.size()));
  }
  for (int l = run->begin; l < run->end; ++l) {
    LayerKind& kind = kinds[static_cast<std::size_t>(l)];
    if (kind == LayerKind::kPatch) {
      return Bad(Cat("metadata: run_layers: '", text, "' holds ", l, " of patch_layers"));
    }
    kind = l == run->begin ? LayerKind::kStream : LayerKind::kNative;
  }
  return absl::OkStatus();
}

// The kind of each layer: version 2 has "patch_layers", version 3 "run_layers" and may have both.
absl::StatusOr<std::vector<LayerKind>> ReadKinds(const SafetensorsFile& file, std::int64_t layers) {
  std::vector<LayerKind> kinds(static_cast<std::size_t>(layers), LayerKind::kReuse);
  BATON_ASSIGN_OR_RETURN(const std::int64_t version, Number(file, "format_version"));
  if (version == 2 || (version == 3 && file.metadata().count("patch_layers") > 0)) {
    BATON_RETURN_IF_ERROR(ReadPatched(file, kinds));
  }
  if (version == 3) BATON_RETURN_IF_ERROR(ReadRun(file, kinds));
  return kinds;
}

absl::StatusOr<const TensorView*> Find(const SafetensorsFile& file, const std::string& name) {
  const TensorView* view = file.Find(name);
  if (view == nullptr) return Bad(Cat("tensor '", name, "' is missing"));
  return view;
}

absl::Status ReadFloats(const TensorView& view, std::vector<float>& to) {
  to.resize(static_cast<std::size_t>(view.elements()));
  return DequantizeRow(view.dtype, view.data, to.data(), view.elements());
}

// Rows of codes, and their scales in the tensor beside it.
absl::Status ReadInt8(const SafetensorsFile& file, const TensorView& view, std::vector<float>& to) {
  BATON_ASSIGN_OR_RETURN(const TensorView* scales, Find(file, view.name + "_scale"));
  if (view.shape.size() != 2 || scales->shape != std::vector<std::int64_t>{view.shape[0]}) {
    return Bad(Cat("shape ", ShapeString(view.shape), " with scales ", ShapeString(scales->shape)));
  }
  std::vector<float> scale;
  BATON_RETURN_IF_ERROR(ReadFloats(*scales, scale));
  const auto* codes = reinterpret_cast<const std::int8_t*>(view.data);
  to.resize(static_cast<std::size_t>(view.elements()));
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = scale[i / static_cast<std::size_t>(view.shape[1])] * static_cast<float>(codes[i]);
  }
  return absl::OkStatus();
}

bool HasMlp(const SafetensorsFile& file, std::size_t index, LayerKind kind) {
  return kind == LayerKind::kPatch &&
         std::any_of(std::begin(kMlpFields), std::end(kMlpFields), [&](const LayerField& field) {
           return file.Find(TensorName(index, field.name)) != nullptr;
         });
}

absl::StatusOr<CodecLayer> ReadLayer(const SafetensorsFile& file, std::size_t index,
                                     LayerKind kind) {
  CodecLayer layer;
  layer.kind = kind;
  if (kind == LayerKind::kNative) return layer;
  const std::string bits_name = TensorName(index, "bits");
  BATON_ASSIGN_OR_RETURN(const TensorView* bits, Find(file, bits_name));
  if (bits->dtype != StoredDType::kU8) {
    return Bad(Cat("tensor '", bits_name, "': ", DTypeName(bits->dtype), ", expected U8"));
  }
  const auto* first = reinterpret_cast<const std::uint8_t*>(bits->data);
  layer.bits.assign(first, first + bits->nbytes);
  for (const LayerField& field : FieldsOf(kind, HasMlp(file, index, kind))) {
    const std::string name = TensorName(index, field.name);
    BATON_ASSIGN_OR_RETURN(const TensorView* view, Find(file, name));
    absl::Status read = view->dtype == StoredDType::kI8 && field.matrix
                            ? ReadInt8(file, *view, layer.*field.values)
                            : ReadFloats(*view, layer.*field.values);
    if (!read.ok()) return Bad(Cat("tensor '", name, "': ", StdView(read.message())));
  }
  return layer;
}

absl::StatusOr<Codec> Read(const SafetensorsFile& file) {
  Codec codec;
  BATON_ASSIGN_OR_RETURN(codec.identity, ReadIdentity(file));
  const auto layers = static_cast<std::size_t>(codec.identity.layers);
  BATON_ASSIGN_OR_RETURN(const std::vector<LayerKind> kinds,
                         ReadKinds(file, codec.identity.layers));
  std::size_t expected = 0;
  for (std::size_t l = 0; l < layers; ++l) {
    if (kinds[l] == LayerKind::kNative) continue;
    expected += 1 + FieldsOf(kinds[l], HasMlp(file, l, kinds[l])).size();
  }
  const auto scales = static_cast<std::size_t>(
      std::count_if(file.tensors().begin(), file.tensors().end(),
                    [](const TensorView& t) { return t.dtype == StoredDType::kI8; }));
  expected += scales;
  if (file.tensors().size() != expected) {
    return Bad(Cat(file.tensors().size(), " tensors, expected ", expected));
  }
  for (std::size_t l = 0; l < layers; ++l) {
    BATON_ASSIGN_OR_RETURN(CodecLayer layer, ReadLayer(file, l, kinds[l]));
    codec.layers.push_back(std::move(layer));
  }
  if (auto it = file.metadata().find("report"); it != file.metadata().end()) {
    codec.report = it->second;
  }
  BATON_RETURN_IF_ERROR(CheckCodec(codec));
  return codec;
}

class Writer {
 public:
  void Add(const std::string& name, const char* dtype, const std::vector<std::int64_t>& shape,
           std::string_view bytes) {
    header_[name] = {
        {"dtype", dtype}, {"shape", shape}, {"data_offsets", {size_, size_ + bytes.size()}}};
    data_.push_back(bytes);
    size_ += bytes.size();
  }
  void AddInt8(const std::string& name, const std::vector<std::int64_t>& shape,
               const std::vector<float>& matrix) {
    const auto width = static_cast<std::size_t>(shape[1]);
    std::string& codes = owned_.emplace_back();
    std::string& scales = owned_.emplace_back();
    for (std::size_t at = 0; at < matrix.size(); at += width) {
      const Int8Row row(absl::MakeConstSpan(matrix).subspan(at, width));
      codes += BytesOf(row.codes);
      scales.append(reinterpret_cast<const char*>(&row.scale), sizeof(row.scale));
    }
    Add(name, "I8", shape, codes);
    Add(name + "_scale", "F32", {shape[0]}, scales);
  }
  void Metadata(const std::map<std::string, std::string>& metadata) {
    header_["__metadata__"] = metadata;
  }
  absl::Status Write(const std::string& path) const {
    std::string header = header_.dump();
    header.append((8 - header.size() % 8) % 8, ' ');
    const std::uint64_t length = header.size();
    const std::string part = path + ".part";
    std::ofstream out(part, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(&length), sizeof(length));
    out << header;
    for (const std::string_view bytes : data_) {
      out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
    out.close();
    std::error_code error;
    if (out) std::filesystem::rename(part, path, error);
    if (!out || error) {
      std::filesystem::remove(part, error);
      return absl::InternalError(Cat(path, ": cannot be written"));
    }
    return absl::OkStatus();
  }

 private:
  nlohmann::ordered_json header_;
  std::vector<std::string_view> data_;
  std::deque<std::string> owned_;  // what data_ shows of it stays where it is
  std::uint64_t size_ = 0;
};

}  // namespace

const char* CodeSourceName(CodeSource source) { return source == CodeSource::kHidden ? "h" : "kv"; }

const char* LayerKindName(LayerKind kind) {
  switch (kind) {
    case LayerKind::kPatch:
      return "patch";
    case LayerKind::kStream:
      return "stream";
    case LayerKind::kNative:
      return "native";
    case LayerKind::kReuse:
      break;
  }
  return "reuse";
}

bool Codec::patched() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const CodecLayer& l) { return l.kind == LayerKind::kPatch; });
}

LayerRun Codec::run() const {
  const auto of_kind = [](LayerKind kind) {
    return [kind](const CodecLayer& layer) { return layer.kind == kind; };
  };
  const auto begin = std::find_if(layers.begin(), layers.end(), of_kind(LayerKind::kStream));
  if (begin == layers.end()) return {};
  const auto end = std::find_if_not(begin + 1, layers.end(), of_kind(LayerKind::kNative));
  return {static_cast<int>(begin - layers.begin()), static_cast<int>(end - layers.begin())};
}

std::string Codec::EncoderDigest() const {
  PartDigest digest;
  digest.Add(identity.producer_weights);
  digest.Add(identity.tokenizer);
  digest.Add(CodeSourceName(identity.source));
  for (const CodecLayer& layer : layers) {
    digest.Add(BytesOf(layer.bits));
    // Of the other kinds the source is the same.
    if (layer.kind == LayerKind::kStream) digest.Add(LayerKindName(layer.kind));
    for (const auto* values : {&layer.mean, &layer.encoder, &layer.importance, &layer.levels}) {
      digest.Add(BytesOf(*values));
    }
  }
  return digest.Hex();
}

std::string Codec::Digest() const {
  PartDigest digest;
  digest.Add(EncoderDigest());
  digest.Add(identity.consumer_weights);
  for (const CodecLayer& layer : layers) {
    digest.Add(BytesOf(layer.decoder));
    digest.Add(BytesOf(layer.offset));
    if (layer.kind == LayerKind::kReuse) continue;
    digest.Add(LayerKindName(layer.kind));
    digest.Add(BytesOf(layer.mlp_in));
    digest.Add(BytesOf(layer.mlp_out));
  }
  return digest.Hex();
}

std::string ConsumerWeightsDigest(const std::string& weights, const std::string& adapter_digest) {
  if (adapter_digest.empty()) return weights;
  PartDigest digest;
  digest.Add(weights);
  digest.Add(adapter_digest);
  return digest.Hex();
}

double Codec::bytes_per_token() const {
  std::int64_t bits = 0;
  for (const CodecLayer& layer : layers) {
    for (const std::uint8_t b : layer.bits) bits += b;
  }
  return static_cast<double>(bits) / 8;
}

std::optional<double> Codec::held_out_kl() const {
  const auto json = nlohmann::json::parse(report, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("chosen") || !json.contains("candidates")) return {};
  for (const auto& candidate : json["candidates"]) {
    if (!candidate.is_object() || !candidate.contains("name") || !candidate.contains("kl"))
      continue;
    if (candidate["name"] == json["chosen"] && candidate["kl"].is_number()) {
      return candidate["kl"].get<double>();
    }
  }
  return {};
}

absl::Status CheckCodec(const Codec& codec) {
  BATON_RETURN_IF_ERROR(CheckIdentity(codec.identity));
  if (static_cast<std::int64_t>(codec.layers.size()) != codec.identity.layers) {
    return Bad(Cat("layers: ", codec.layers.size(), ", expected ", codec.identity.layers));
  }
  BATON_RETURN_IF_ERROR(CheckKinds(codec));
  for (std::size_t l = 0; l < codec.layers.size(); ++l) {
    absl::Status s = CheckSizes(codec.layers[l], codec.identity);
    if (s.ok()) s = CheckOrder(codec.layers[l]);
    if (!s.ok()) return Bad(Cat("layer ", l, ": ", StdView(s.message())));
  }
  return absl::OkStatus();
}

absl::StatusOr<Codec> LoadCodec(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(path));
  auto codec = Read(*file);
  if (codec.ok()) return codec;
  return absl::Status(codec.status().code(), Cat(path, ": ", StdView(codec.status().message())));
}

void RoundToInt8(Codec& codec) {
  for (CodecLayer& layer : codec.layers) {
    for (const LayerField& field : FieldsOf(layer.kind, !layer.mlp_in.empty())) {
      if (!field.matrix) continue;
      std::vector<float>& values = layer.*field.values;
      const auto rows = static_cast<std::size_t>(RowsOf(field, layer, codec.identity));
      const std::size_t width = values.size() / rows;
      for (std::size_t at = 0; at < values.size(); at += width) {
        const Int8Row row(absl::MakeConstSpan(values).subspan(at, width));
        for (std::size_t i = 0; i < width; ++i) {
          values[at + i] = row.scale * static_cast<float>(row.codes[i]);
        }
      }
    }
  }
}

absl::Status SaveCodec(const Codec& codec, const std::string& path, CodecStorage storage) {
  BATON_RETURN_IF_ERROR(CheckCodec(codec));
  const CodecIdentity& id = codec.identity;
  std::map<std::string, std::string> metadata = {{"format", std::string(kFormat)},
                                                 {"format_version", absl::StrCat(codec.version())},
                                                 {"producer_weights", id.producer_weights},
                                                 {"consumer_weights", id.consumer_weights},
                                                 {"tokenizer", id.tokenizer},
                                                 {"source", CodeSourceName(id.source)},
                                                 {"layers", absl::StrCat(id.layers)},
                                                 {"hidden", absl::StrCat(id.hidden)},
                                                 {"kv_heads", absl::StrCat(id.kv_heads)},
                                                 {"head_dim", absl::StrCat(id.head_dim)},
                                                 {"report", codec.report}};
  if (codec.patched()) {
    std::string& patched = metadata["patch_layers"];
    for (std::size_t l = 0; l < codec.layers.size(); ++l) {
      if (codec.layers[l].kind != LayerKind::kPatch) continue;
      absl::StrAppend(&patched, patched.empty() ? "" : ",", l);
    }
  }
  if (const LayerRun run = codec.run(); !run.empty()) metadata["run_layers"] = LayerRunText(run);
  Writer writer;
  writer.Metadata(metadata);
  for (std::size_t l = 0; l < codec.layers.size(); ++l) {
    const CodecLayer& layer = codec.layers[l];
    if (layer.kind == LayerKind::kNative) continue;
    writer.Add(TensorName(l, "bits"), "U8", {layer.rank()}, BytesOf(layer.bits));
    for (const LayerField& field : FieldsOf(layer.kind, !layer.mlp_in.empty())) {
      const std::vector<float>& v = layer.*field.values;
      const std::string name = TensorName(l, field.name);
      std::vector<std::int64_t> shape = {static_cast<std::int64_t>(v.size())};
      if (field.matrix) {
        const std::int64_t rows = RowsOf(field, layer, id);
        shape = {rows, shape[0] / rows};
      }
      if (field.matrix && storage == CodecStorage::kInt8) {
        writer.AddInt8(name, shape, v);
      } else {
        writer.Add(name, "F32", shape, BytesOf(v));
      }
    }
  }
  return writer.Write(path);
}

}  // namespace baton
