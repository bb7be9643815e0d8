#include "common/weights/model_source.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/weights/dequantize.h"
#include "common/weights/digest.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

constexpr size_t kMaxListed = 8;  // names in one error message

// The Hugging Face name of a GGUF tensor of the llama family; empty for an unknown name.
std::string HuggingFaceName(std::string_view gguf) {
  constexpr std::pair<std::string_view, std::string_view> kTop[] = {
      {"token_embd.weight", "model.embed_tokens.weight"},
      {"output_norm.weight", "model.norm.weight"},
      {"output.weight", "lm_head.weight"},
  };
  constexpr std::pair<std::string_view, std::string_view> kInLayer[] = {
      {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
      {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"},
  };
  for (const auto& [from, to] : kTop) {
    if (gguf == from) return std::string(to);
  }
  constexpr std::string_view kBlock = "blk.";
  if (!gguf.starts_with(kBlock)) return "";
  gguf.remove_prefix(kBlock.size());
  const size_t dot = gguf.find('.');
  const size_t last = gguf.rfind('.');
  if (dot == std::string_view::npos || last == dot) return "";
  const std::string_view module = gguf.substr(dot + 1, last - dot - 1);
  for (const auto& [from, to] : kInLayer) {
    if (module == from) {
      return Cat("model.layers.", gguf.substr(0, dot), ".", to, gguf.substr(last));
    }
  }
  return "";
}

std::string ListOf(const std::vector<std::string>& names) {
  const auto shown = std::min(names.size(), kMaxListed);
  std::string text = absl::StrJoin(names.begin(), names.begin() + static_cast<long>(shown), ", ");
  if (names.size() > shown) text += Cat(" and ", names.size() - shown, " more");
  return text;
}

absl::StatusOr<std::string> ReadIfExists(const std::string& path) {
  if (!std::filesystem::exists(path)) return std::string();
  return ReadTextFile(path);
}

// The vocabulary of a folder without tokenizer.json: tokenizer.model, else the first *.tiktoken by
// name; empty when there is none.
std::string VocabularyFile(const std::string& folder) {
  std::error_code error;
  std::string model = folder + "/tokenizer.model";
  if (std::filesystem::exists(model, error)) return model;
  std::string found;
  const std::filesystem::directory_iterator end;
  for (std::filesystem::directory_iterator it(folder, error); !error && it != end;
       it.increment(error)) {
    const std::string file = it->path().string();
    if (file.ends_with(".tiktoken") && (found.empty() || file < found)) found = file;
  }
  return found;
}

std::vector<std::string> HashTensors(const std::vector<const TensorView*>& views, int threads) {
  std::vector<PiecewiseHash> hashes;
  std::vector<std::pair<size_t, size_t>> pieces;  // tensor, piece
  for (size_t i = 0; i < views.size(); ++i) {
    hashes.emplace_back(views[i]->data, views[i]->nbytes);
    for (size_t k = 0; k < hashes[i].pieces(); ++k) pieces.emplace_back(i, k);
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t p = next++; p < pieces.size(); p = next++) {
      const auto [i, k] = pieces[p];
      hashes[i].Hash(k);
      const std::string_view read = hashes[i].piece(k);
      DoneReading(reinterpret_cast<const std::byte*>(read.data()), read.size());
    }
  };
  std::vector<std::thread> helpers;
  if (pieces.size() > 1) {
    for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  std::vector<std::string> hex;
  hex.reserve(hashes.size());
  for (const PiecewiseHash& hash : hashes) hex.push_back(hash.Hex());
  return hex;
}

// Whether two tensors' bytes are equal, without keeping them in memory.
bool SameBytes(const TensorView& a, const TensorView& b) {
  if (a.nbytes != b.nbytes) return false;
  for (size_t at = 0; at < a.nbytes; at += PiecewiseHash::kPieceBytes) {
    const size_t n = std::min(PiecewiseHash::kPieceBytes, a.nbytes - at);
    const bool same = std::memcmp(a.data + at, b.data + at, n) == 0;
    DoneReading(a.data + at, n);
    DoneReading(b.data + at, n);
    if (!same) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelSource>> ModelSource::Open(const std::string& path) {
  std::unique_ptr<ModelSource> source(new ModelSource());
  source->path_ = path;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    source->format_ = Format::kHuggingFace;
    BATON_RETURN_IF_ERROR(source->OpenHuggingFace());
  } else {
    BATON_RETURN_IF_ERROR(source->OpenGguf());
  }
  if (absl::Status status = CheckRunnable(source->config_); !status.ok()) {
    return absl::Status(status.code(), Cat(path, ": ", StdView(status.message())));
  }
  BATON_RETURN_IF_ERROR(source->CheckTensors());
  return source;
}

absl::Status ModelSource::OpenGguf() {
  BATON_ASSIGN_OR_RETURN(gguf_, GgufFile::Open(path_));
  BATON_ASSIGN_OR_RETURN(config_, ParseGgufConfig(*gguf_));
  const bool permutes = config_.architecture == "llama";
  for (const TensorView& view : gguf_->tensors()) {
    if (view.name == "rope_freqs.weight") continue;  // part of the config
    SourceTensor tensor{&view, &gguf_->path()};
    if (permutes && (view.name.find(".attn_q.") != std::string::npos ||
                     view.name.find(".attn_k.") != std::string::npos)) {
      tensor.rope_permuted = true;
      tensor.head_dim = config_.head_dim;
    }
    std::string name = HuggingFaceName(view.name);
    if (name.empty()) {
      return absl::InvalidArgumentError(Cat(path_, ": tensor '", view.name, "' is not one of a ",
                                            config_.architecture, " model"));
    }
    tensors_.emplace(std::move(name), tensor);
  }
  constexpr const char* kTemplateKey = "tokenizer.chat_template";
  if (gguf_->Has(kTemplateKey)) {
    BATON_ASSIGN_OR_RETURN(const std::string_view text, gguf_->GetString(kTemplateKey));
    chat_template_ = std::string(text);
    // More than one: the others lie under tokenizer.chat_template.<name> and are not used.
    const bool named = gguf_->Has("tokenizer.chat_templates");
    chat_template_origin_ =
        Cat(path_, " (", kTemplateKey, named ? ", the default of several named ones)" : ")");
  }
  return absl::OkStatus();
}

absl::Status ModelSource::OpenHuggingFace() {
  BATON_ASSIGN_OR_RETURN(const std::string config, ReadTextFile(path_ + "/config.json"));
  BATON_ASSIGN_OR_RETURN(const std::string generation,
                         ReadIfExists(path_ + "/generation_config.json"));
  auto parsed = ParseHfConfig(config, generation);
  if (!parsed.ok()) {
    return absl::Status(parsed.status().code(),
                        Cat(path_, ": ", StdView(parsed.status().message())));
  }
  config_ = *std::move(parsed);
  BATON_ASSIGN_OR_RETURN(safetensors_, SafetensorsSet::OpenDirectory(path_));
  for (const auto& [name, entry] : safetensors_->tensors()) {
    // Older checkpoints store the RoPE frequencies, which the config already gives.
    if (name.ends_with(".rotary_emb.inv_freq")) continue;
    tensors_.emplace(name, SourceTensor{entry.view, entry.file});
  }
  BATON_RETURN_IF_ERROR(ResolveTiedHead());
  return ReadHuggingFaceTexts();
}

// A tied model may still store its head; it must then be the embedding.
absl::Status ModelSource::ResolveTiedHead() {
  const auto head = tensors_.find("lm_head.weight");
  const auto embedding = tensors_.find("model.embed_tokens.weight");
  if (!config_.tie_embeddings || head == tensors_.end() || embedding == tensors_.end()) {
    return absl::OkStatus();
  }
  const TensorView& a = *head->second.view;
  const TensorView& b = *embedding->second.view;
  if (a.dtype != b.dtype || a.shape != b.shape || !SameBytes(a, b)) {
    return absl::InvalidArgumentError(
        Cat(*head->second.file,
            ": config.json says tie_word_embeddings, but lm_head.weight differs from "
            "model.embed_tokens.weight"));
  }
  tensors_.erase(head);
  return absl::OkStatus();
}

absl::Status ModelSource::ReadHuggingFaceTexts() {
  BATON_ASSIGN_OR_RETURN(tokenizer_json_, ReadIfExists(path_ + "/tokenizer.json"));
  if (tokenizer_json_.empty()) {
    if (const std::string file = VocabularyFile(path_); !file.empty()) {
      BATON_ASSIGN_OR_RETURN(tokenizer_vocabulary_, ReadTextFile(file));
    }
  }
  BATON_ASSIGN_OR_RETURN(tokenizer_config_json_, ReadIfExists(path_ + "/tokenizer_config.json"));
  BATON_ASSIGN_OR_RETURN(std::string jinja, ReadIfExists(path_ + "/chat_template.jinja"));
  if (!jinja.empty()) {
    chat_template_ = std::move(jinja);
    chat_template_origin_ = path_ + "/chat_template.jinja";
    return absl::OkStatus();
  }
  if (tokenizer_config_json_.empty()) return absl::OkStatus();
  const auto root =
      nlohmann::json::parse(tokenizer_config_json_, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object() || !root.contains("chat_template") || root["chat_template"].is_null()) {
    return absl::OkStatus();
  }
  chat_template_origin_ = path_ + "/tokenizer_config.json";
  const nlohmann::json& found = root["chat_template"];
  if (found.is_string()) {
    chat_template_ = found.get<std::string>();
    return absl::OkStatus();
  }
  // A list of named templates: the one called "default" is for chat, others are not used.
  if (!found.is_array()) {
    return absl::InvalidArgumentError(
        Cat(chat_template_origin_, ": 'chat_template' is neither a text nor a list of named ones"));
  }
  for (const auto& item : found) {
    if (item.is_object() && item.value("name", nlohmann::json()) == "default" &&
        item.value("template", nlohmann::json()).is_string()) {
      chat_template_ = item["template"].get<std::string>();
      chat_template_origin_ += Cat(" (the default of ", found.size(), " named templates)");
      return absl::OkStatus();
    }
  }
  chat_template_origin_ += Cat(" (", found.size(), " named templates, none of them 'default')");
  return absl::OkStatus();
}

absl::Status ModelSource::CheckTensors() {
  std::vector<std::string> missing;
  std::vector<std::string> wrong;
  size_t found = 0;
  const auto expected = ExpectedTensors(config_);
  for (const auto& [name, shape] : expected) {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) {
      missing.push_back(name);
      continue;
    }
    ++found;
    names_.push_back(name);
    const TensorView& view = *it->second.view;
    if (view.shape != shape) {
      wrong.push_back(Cat("tensor '", view.name, "' has shape ", ShapeString(view.shape),
                          ", the config says ", ShapeString(shape)));
    } else if (!IsDequantizable(view.dtype)) {
      return absl::UnimplementedError(Cat(*it->second.file, ": tensor '", view.name, "' has type ",
                                          DTypeName(view.dtype), ", which is not supported (",
                                          kDequantizableTypes, " are)"));
    }
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        Cat(path_, ": missing ", missing.size(), " tensors: ", absl::StrJoin(missing, ", ")));
  }
  if (!wrong.empty()) return absl::InvalidArgumentError(Cat(path_, ": ", ListOf(wrong)));
  if (found != tensors_.size()) {
    std::vector<std::string> extra;
    std::sort(names_.begin(), names_.end());
    for (const auto& [name, tensor] : tensors_) {
      if (!std::binary_search(names_.begin(), names_.end(), name)) extra.push_back(name);
    }
    std::sort(extra.begin(), extra.end());
    return absl::InvalidArgumentError(
        Cat(path_, ": tensors the config does not account for: ", ListOf(extra)));
  }
  std::sort(names_.begin(), names_.end());
  return absl::OkStatus();
}

bool ModelSource::HasTensor(std::string_view name) const {
  return tensors_.contains(std::string(name));
}

absl::StatusOr<SourceTensor> ModelSource::GetTensor(std::string_view name) const {
  const auto it = tensors_.find(std::string(name));
  if (it == tensors_.end()) return absl::NotFoundError(Cat(path_, ": no tensor '", name, "'"));
  return it->second;
}

absl::Status ModelSource::ReadTensorF32(std::string_view name,
                                        absl::Span<const int64_t> expected_shape,
                                        float* dst) const {
  BATON_ASSIGN_OR_RETURN(const SourceTensor tensor, GetTensor(name));
  const TensorView& view = *tensor.view;
  const std::vector<int64_t> expected(expected_shape.begin(), expected_shape.end());
  if (view.shape != expected) {
    return absl::InvalidArgumentError(Cat(*tensor.file, ": tensor '", view.name, "' has shape ",
                                          ShapeString(view.shape), ", expected ",
                                          ShapeString(expected)));
  }
  return ReadRowsF32(name, 0, view.shape.size() >= 2 ? view.shape[0] : 1, dst);
}

absl::Status ModelSource::ReadRowsF32(std::string_view name, int64_t begin, int64_t count,
                                      float* dst) const {
  BATON_ASSIGN_OR_RETURN(const SourceTensor tensor, GetTensor(name));
  const TensorView& view = *tensor.view;
  const int64_t rows = view.shape.size() >= 2 ? view.shape[0] : 1;
  if (begin < 0 || count < 0 || begin > rows || count > rows - begin) {
    return absl::OutOfRangeError(Cat(*tensor.file, ": tensor '", view.name, "': rows [", begin,
                                     ", ", begin + count, ") of ", rows));
  }
  const int64_t columns = rows == 0 ? 0 : view.elements() / rows;
  const int64_t row_bytes = DTypeRowBytes(view.dtype, columns);
  const bool vector = view.shape.size() < 2;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t stored = vector ? 0 : tensor.StoredRow(begin + i);
    const absl::Status status =
        DequantizeRow(view.dtype, view.data + stored * row_bytes, dst + i * columns, columns);
    if (!status.ok()) {
      return absl::Status(status.code(), Cat(*tensor.file, ": tensor '", view.name,
                                             "': ", StdView(status.message())));
    }
  }
  if (vector && tensor.rope_permuted && count == 1) {  // a bias: its elements are the rows
    const std::vector<float> permuted(dst, dst + columns);
    for (int64_t i = 0; i < columns; ++i) {
      dst[i] = permuted[static_cast<size_t>(tensor.StoredRow(i))];
    }
  }
  return absl::OkStatus();
}

std::string ModelSource::WeightsDigest(int threads, const TensorHashes& known) const {
  {
    MutexLock lock(digest_mu_);
    if (!digest_.empty()) return digest_;
  }
  std::vector<const TensorView*> unknown;
  for (const std::string& name : names_) {
    if (!known.contains(name)) unknown.push_back(tensors_.at(name).view);
  }
  const std::vector<std::string> hashes = HashTensors(unknown, threads);

  PartDigest digest;
  digest.Add("baton weights 2");
  auto computed = hashes.begin();
  for (const std::string& name : names_) {
    const SourceTensor& tensor = tensors_.at(name);
    const auto it = known.find(name);
    digest.Add(name);
    digest.Add(DTypeName(tensor.view->dtype));
    digest.Add(ShapeString(tensor.view->shape));
    digest.Add(tensor.rope_permuted ? "permuted" : "plain");
    digest.Add(it != known.end() ? it->second : *computed++);
  }
  MutexLock lock(digest_mu_);
  digest_ = digest.Hex();
  return digest_;
}

}  // namespace baton
