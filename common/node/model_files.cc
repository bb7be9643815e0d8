#include "common/node/model_files.h"

#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/model_tokenizer.h"
#include "common/weights/mapped_file.h"

namespace baton {
namespace {

constexpr std::size_t kMaxTemplateBytes = 1 << 20;

struct Template {
  std::string text;
  std::string end_of_turn;
};

// The override (a known name or a file), else the model's own, else nothing.
absl::StatusOr<Template> LoadTemplate(const ModelEntry& entry, const ModelSource& source) {
  if (!entry.chat_template.empty()) {
    if (auto by_name = ChatTemplate::ByName(entry.chat_template); by_name.ok()) {
      BATON_LOG_INFO("\"{}\": chat template {} of the configuration", entry.name,
                     entry.chat_template);
      return Template{entry.chat_template, std::string(by_name->end_of_turn())};
    }
    auto text = ReadTextFile(entry.chat_template, kMaxTemplateBytes);
    if (!text.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("chat_template: \"", entry.chat_template,
                                                     "\" is neither a readable file nor one of ",
                                                     ChatTemplate::Names()));
    }
    BATON_ASSIGN_OR_RETURN(ChatTemplate chat, ChatTemplate::Recognise(*text));
    return Template{*text, std::string(chat.end_of_turn())};
  }
  if (!source.chat_template()) {
    BATON_LOG_INFO("\"{}\": no chat template in {}; chat requests are refused", entry.name,
                   source.path());
    return Template{};
  }
  auto chat = ChatTemplate::Recognise(*source.chat_template());
  if (!chat.ok()) {
    BATON_LOG_WARN("{}: {}; chat requests to \"{}\" will be refused", source.path(),
                   chat.status().message(), entry.name);
    return Template{*source.chat_template(), ""};
  }
  BATON_LOG_INFO("\"{}\": chat template of {}", entry.name, source.chat_template_origin());
  return Template{*source.chat_template(), std::string(chat->end_of_turn())};
}

std::string CanonicalPath(const std::string& path) {
  std::error_code e;
  const auto p = std::filesystem::weakly_canonical(path, e);
  return e ? path : p.string();
}

absl::Status CheckShape(const std::string& path, const CodecIdentity& id,
                        const ModelConfig& config) {
  struct Field {
    const char* name;
    std::int64_t codec;
    std::int64_t model;
  };
  for (const Field& f :
       {Field{"layers", id.layers, config.layers}, Field{"hidden", id.hidden, config.hidden},
        Field{"kv_heads", id.kv_heads, config.kv_heads},
        Field{"head_dim", id.head_dim, config.head_dim}}) {
    if (f.codec == f.model) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("codecs: ", path, ": ", f.name, ": ", f.codec, ", the model has ", f.model));
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerRun> SelectiveLayers(const ModelEntry& entry, const ModelConfig& config) {
  if (entry.selective_layers.empty()) return LayerRun();
  BATON_ASSIGN_OR_RETURN(const LayerRun run, ParseLayerRun(entry.selective_layers));
  if (run.end <= config.layers) return run;
  return absl::InvalidArgumentError(absl::StrCat("selective_layers: ", entry.selective_layers,
                                                 ", the model has the layers 0-",
                                                 config.layers - 1));
}

class Opener {
 public:
  explicit Opener(std::int64_t max_lora_rank) : max_lora_rank_(max_lora_rank) {}

  absl::StatusOr<ModelFiles::Entry> Open(const ModelEntry& entry) {
    ModelFiles::Entry opened;
    BATON_ASSIGN_OR_RETURN(opened.weights, OpenWeights(entry.path));
    const ModelSource& source = *files_.weights[opened.weights].source;
    if (!entry.adapter.empty()) {
      BATON_ASSIGN_OR_RETURN(opened.adapter, OpenAdapter(entry, opened.weights));
    }
    BATON_ASSIGN_OR_RETURN(Template chat, LoadTemplate(entry, source));
    opened.chat_template = std::move(chat.text);
    opened.end_of_turn = std::move(chat.end_of_turn);
    const auto limit = static_cast<std::int32_t>(source.config().max_context);
    if (entry.max_context > limit) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_context: ", entry.max_context, " is above the model's own ", limit));
    }
    opened.max_context = entry.max_context > 0 ? entry.max_context : limit;
    for (const std::string& path : entry.codecs) {
      BATON_ASSIGN_OR_RETURN(Codec codec, LoadCodec(path));
      BATON_RETURN_IF_ERROR(CheckShape(path, codec.identity, source.config()));
      opened.codecs.push_back(std::make_shared<const Codec>(std::move(codec)));
    }
    BATON_ASSIGN_OR_RETURN(opened.selective, SelectiveLayers(entry, source.config()));
    return opened;
  }

  ModelFiles Finish() && { return std::move(files_); }
  std::vector<ModelFiles::Entry>& entries() { return files_.entries; }

 private:
  absl::StatusOr<std::size_t> OpenWeights(const std::string& path) {
    const std::string key = CanonicalPath(path);
    if (auto it = weights_.find(key); it != weights_.end()) return it->second;
    ModelFiles::Weights opened;
    BATON_ASSIGN_OR_RETURN(opened.source, ModelSource::Open(path));
    BATON_LOG_INFO("{}: {}", path, Describe(opened.source->config()));
    for (const std::string& warning : opened.source->config().warnings) {
      BATON_LOG_WARN("{}: {}", path, warning);
    }
    BATON_ASSIGN_OR_RETURN(opened.tokenizer, ReadModelTokenizer(*opened.source));
    files_.weights.push_back(std::move(opened));
    return weights_[key] = files_.weights.size() - 1;
  }

  absl::StatusOr<std::shared_ptr<const LoraAdapter>> OpenAdapter(const ModelEntry& entry,
                                                                 std::size_t weights) {
    const std::pair key(CanonicalPath(entry.adapter), weights);
    if (auto it = adapters_.find(key); it != adapters_.end()) return it->second;
    BATON_ASSIGN_OR_RETURN(
        LoraAdapter adapter,
        LoadLoraAdapter(entry.adapter, entry.name, files_.weights[weights].source->config(),
                        max_lora_rank_));
    return adapters_[key] = std::make_shared<const LoraAdapter>(std::move(adapter));
  }

  const std::int64_t max_lora_rank_;
  ModelFiles files_;
  std::map<std::string, std::size_t> weights_;  // by canonical path
  std::map<std::pair<std::string, std::size_t>, std::shared_ptr<const LoraAdapter>> adapters_;
};

}  // namespace

absl::StatusOr<ModelFiles> ModelFiles::Open(const std::vector<ModelEntry>& entries,
                                            std::int64_t max_lora_rank) {
  BATON_RETURN_IF_ERROR(CheckModelEntries(entries));
  Opener opener(max_lora_rank);
  std::vector<std::string> errors;
  absl::StatusCode code = absl::StatusCode::kOk;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    auto entry = opener.Open(entries[i]);
    if (entry.ok()) {
      opener.entries().push_back(*std::move(entry));
      continue;
    }
    if (errors.empty()) code = entry.status().code();
    errors.push_back(
        absl::StrCat("models[", i, "] (", entries[i].name, "): ", entry.status().message()));
  }
  if (!errors.empty()) return absl::Status(code, absl::StrJoin(errors, "\n"));
  return std::move(opener).Finish();
}

}  // namespace baton
