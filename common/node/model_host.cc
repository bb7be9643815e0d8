#include "common/node/model_host.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/logging.h"
#include "common/base/machine.h"
#include "common/base/status_macros.h"
#include "common/config/scalar.h"
#include "common/node/space_proto.h"
#include "common/tokenizer/chat_template.h"
#include "common/weights/lora.h"
#include "common/weights/mapped_file.h"
#include "common/weights/model_source.h"

namespace baton {
namespace {

constexpr std::size_t kMaxTemplateBytes = 1 << 20;

absl::Status InEntry(size_t i, const ModelEntry& entry, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("models[", i, "] (", entry.name, "): ", status.message()));
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(const ModelSource& source) {
  if (source.gguf() != nullptr) {
    BATON_ASSIGN_OR_RETURN(GgufVocab vocab, ReadGgufVocab(*source.gguf()));
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> t, Tokenizer::FromGguf(vocab));
    return std::shared_ptr<const Tokenizer>(std::move(t));
  }
  if (source.tokenizer_json().empty()) {
    if (source.tokenizer_vocabulary().empty()) {
      return absl::NotFoundError(
          absl::StrCat(source.path(), ": no tokenizer.json, tokenizer.model or *.tiktoken"));
    }
    BATON_ASSIGN_OR_RETURN(
        std::unique_ptr<Tokenizer> t,
        Tokenizer::FromVocabulary(source.tokenizer_vocabulary(), source.tokenizer_config_json()));
    return std::shared_ptr<const Tokenizer>(std::move(t));
  }
  BATON_ASSIGN_OR_RETURN(
      std::unique_ptr<Tokenizer> t,
      Tokenizer::FromJson(source.tokenizer_json(), source.tokenizer_config_json()));
  return std::shared_ptr<const Tokenizer>(std::move(t));
}

struct Template {
  std::string text;
  std::string end_of_turn;
};

// The override (a known name or a file), else the model's own, else nothing.
absl::StatusOr<Template> LoadTemplate(const ModelEntry& entry, const ModelSource& source) {
  if (!entry.chat_template.empty()) {
    if (auto by_name = ChatTemplate::ByName(entry.chat_template); by_name.ok()) {
      return Template{entry.chat_template, std::string(by_name->end_of_turn())};
    }
    auto text = ReadTextFile(entry.chat_template, kMaxTemplateBytes);
    if (!text.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("chat_template: \"", entry.chat_template,
                       "\" is neither chatml, smollm2, llama3 or llama3.1 nor a readable file"));
    }
    BATON_ASSIGN_OR_RETURN(ChatTemplate chat, ChatTemplate::Recognise(*text));
    return Template{*text, std::string(chat.end_of_turn())};
  }
  if (!source.chat_template()) return Template{};
  auto chat = ChatTemplate::Recognise(*source.chat_template());
  if (!chat.ok()) {
    BATON_LOG_WARN("{}: {}; chat requests to \"{}\" will be refused", source.path(),
                   chat.status().message(), entry.name);
    return Template{*source.chat_template(), ""};
  }
  return Template{*source.chat_template(), std::string(chat->end_of_turn())};
}

struct Group {  // one set of weights, one engine
  std::unique_ptr<ModelSource> source;
  std::shared_ptr<const Model> model;
  std::shared_ptr<AdapterSet> adapters;
  std::map<std::string, int> adapter_index;  // by folder
  std::shared_ptr<const Tokenizer> tokenizer;
  DType kv_dtype = DType::kF32;
  std::set<std::int32_t> eos;
  std::int32_t max_context = 0;
  std::string name;
  std::vector<size_t> entries;
  std::unique_ptr<Engine> engine;

  KvPageLayout PageLayout() const { return {static_cast<int>(model->config().head_dim), kv_dtype}; }
  // Pages that 16 tokens take.
  std::int64_t PagesPerRowGroup() const {
    return model->config().layers * model->config().kv_heads;
  }
};

std::string CanonicalPath(const std::string& path) {
  std::error_code e;
  const auto p = std::filesystem::weakly_canonical(path, e);
  return e ? path : p.string();
}

}  // namespace

class ModelHost::Impl {
 public:
  explicit Impl(const ModelHostOptions& options)
      : options_(options), executor_(MakeThreadPool(options.engine_threads)) {}

  ~Impl() {
    groups_.clear();  // engines stop before pools, executor and gate go
  }

  absl::Status Load(MetricRegistry& metrics) {
    BATON_RETURN_IF_ERROR(CheckModelEntries(options_.models));
    models_.resize(options_.models.size());
    for (size_t i = 0; i < options_.models.size(); ++i) {
      if (absl::Status s = LoadEntry(i); !s.ok()) return InEntry(i, options_.models[i], s);
    }
    BATON_RETURN_IF_ERROR(MakePools());
    return StartEngines(metrics);
  }

  const HostedModel* Find(std::string_view name) const {
    if (name.empty()) return models_.size() == 1 ? &models_[0] : nullptr;
    for (const HostedModel& m : models_) {
      if (m.name == name) return &m;
    }
    return nullptr;
  }

  const ModelHostOptions options_;
  std::unique_ptr<Executor> executor_;
  ComputeGate gate_;
  std::map<std::pair<int, int>, std::shared_ptr<PagePool>> pools_;  // by (head_dim, dtype)
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<HostedModel> models_;
  MemoryPlan plan_;

 private:
  using Key = std::tuple<std::string, int, int>;

  absl::StatusOr<Group*> GroupFor(const ModelEntry& entry) {
    const Key key(CanonicalPath(entry.path), static_cast<int>(entry.weight_dtype),
                  static_cast<int>(entry.kv_dtype));
    if (auto it = by_key_.find(key); it != by_key_.end()) return it->second;
    auto group = std::make_unique<Group>();
    BATON_ASSIGN_OR_RETURN(group->source, ModelSource::Open(entry.path));
    BATON_RETURN_IF_ERROR(CheckRunnable(group->source->config()));
    BATON_LOG_INFO("{}: {}", entry.path, Describe(group->source->config()));
    for (const std::string& warning : group->source->config().warnings) {
      BATON_LOG_WARN("{}: {}", entry.path, warning);
    }
    BATON_ASSIGN_OR_RETURN(group->tokenizer, LoadTokenizer(*group->source));
    ModelLoadOptions load;
    load.weight_dtype = entry.weight_dtype;
    load.executor = executor_.get();
    BATON_ASSIGN_OR_RETURN(group->model, Model::Load(*group->source, load));
    group->adapters = std::make_shared<AdapterSet>(group->model);
    group->kv_dtype = entry.kv_dtype;
    group->name = entry.name;
    for (std::int32_t id : group->model->config().eos_ids) group->eos.insert(id);
    if (auto id = group->tokenizer->eos_id()) group->eos.insert(*id);
    plan_.weight_bytes += static_cast<std::int64_t>(group->model->weight_bytes());
    groups_.push_back(std::move(group));
    return by_key_[key] = groups_.back().get();
  }

  absl::Status LoadEntry(size_t i) {
    const ModelEntry& entry = options_.models[i];
    BATON_ASSIGN_OR_RETURN(Group * group, GroupFor(entry));
    HostedModel& m = models_[i];
    m.name = entry.name;
    m.base_model = entry.base_model.empty() ? entry.name : entry.base_model;
    m.tokenizer = group->tokenizer;
    m.vocab = static_cast<std::int32_t>(group->model->config().vocab);
    m.page_layout = group->PageLayout();
    m.weights_digest = group->model->served_digest();
    if (!entry.adapter.empty()) {
      BATON_RETURN_IF_ERROR(AddAdapter(entry, *group, m));
    }
    BATON_ASSIGN_OR_RETURN(Template chat, LoadTemplate(entry, *group->source));
    if (!chat.text.empty()) {
      m.chat_template = chat.text;
      m.chat_template_digest = ContentDigest(chat.text);
    }
    if (auto id = m.tokenizer->TokenToId(chat.end_of_turn); !chat.end_of_turn.empty() && id) {
      group->eos.insert(*id);
    }
    const auto limit = static_cast<std::int32_t>(group->model->config().max_context);
    if (entry.max_context > limit) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_context: ", entry.max_context, " is above the model's own ", limit));
    }
    m.max_context = entry.max_context > 0 ? entry.max_context : limit;
    group->max_context = std::max(group->max_context, m.max_context);
    const KvLayout layout = MakeKvLayout(group->model->config(), entry.kv_dtype);
    m.native_space = {SpaceKind::kNativeKv, m.weights_digest, m.tokenizer->digest(), layout, "",
                      Fidelity::Exact()};
    m.base_space = {
        SpaceKind::kBaseKv, group->model->served_digest(), m.tokenizer->digest(), layout, "",
        Fidelity::Exact()};
    group->entries.push_back(i);
    return absl::OkStatus();
  }

  absl::Status AddAdapter(const ModelEntry& entry, Group& group, HostedModel& m) {
    const std::string dir = CanonicalPath(entry.adapter);
    auto it = group.adapter_index.find(dir);
    if (it == group.adapter_index.end()) {
      BATON_ASSIGN_OR_RETURN(LoraAdapter lora,
                             LoadLoraAdapter(entry.adapter, entry.name, group.model->config()));
      BATON_ASSIGN_OR_RETURN(int index, group.adapters->Add(lora, *executor_));
      it = group.adapter_index.emplace(dir, index).first;
    }
    m.adapter = it->second;
    m.weights_digest = ContentDigest(
        absl::StrCat(group.model->served_digest(), "+lora:", group.adapters->digest(m.adapter)));
    return absl::OkStatus();
  }

  // Bytes for all pools: what the file says, or a share of what is free now that weights are in,
  // but not more than all running sequences at full length could use twice.
  absl::StatusOr<std::int64_t> KvBytes() const {
    if (options_.memory.kv_cache) return *options_.memory.kv_cache;
    BATON_ASSIGN_OR_RETURN(MachineMemory memory, ReadMachineMemory());
    const double free = static_cast<double>(memory.Free()) * options_.memory.fraction;
    double useful = 0;
    for (const auto& g : groups_) {
      useful += 2.0 * options_.engine.max_running * g->max_context / kPageRows *
                static_cast<double>(g->PagesPerRowGroup()) *
                static_cast<double>(g->PageLayout().page_bytes());
    }
    return static_cast<std::int64_t>(std::min(free, useful));
  }

  absl::Status MakePools() {
    BATON_ASSIGN_OR_RETURN(const std::int64_t bytes, KvBytes());
    std::map<std::pair<int, int>, double> weight;  // bytes a token takes, summed over the engines
    double total = 0;
    for (const auto& g : groups_) {
      const KvPageLayout layout = g->PageLayout();
      const double w = static_cast<double>(g->PagesPerRowGroup()) * layout.page_bytes();
      weight[{layout.head_dim, static_cast<int>(layout.dtype)}] += w;
      total += w;
    }
    for (const auto& [key, w] : weight) {
      const KvPageLayout layout{key.first, static_cast<DType>(key.second)};
      const auto pages =
          static_cast<std::int64_t>(bytes * (w / total) / static_cast<double>(layout.page_bytes()));
      BATON_ASSIGN_OR_RETURN(pools_[key],
                             PagePool::Create(layout, std::max<std::int64_t>(1, pages)));
      plan_.kv_bytes += pages * static_cast<std::int64_t>(layout.page_bytes());
    }
    for (const auto& g : groups_) BATON_RETURN_IF_ERROR(CheckPool(*g));
    return absl::OkStatus();
  }

  PagePool& PoolOf(const Group& g) {
    return *pools_.at({g.PageLayout().head_dim, static_cast<int>(g.kv_dtype)});
  }

  absl::Status CheckPool(const Group& g) {
    const std::int64_t tokens = PoolOf(g).total_pages() / g.PagesPerRowGroup() * kPageRows;
    const std::int64_t block_bytes = g.PagesPerRowGroup() * (kBlockTokens / kPageRows) *
                                     static_cast<std::int64_t>(g.PageLayout().page_bytes());
    if (tokens < kBlockTokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          "memory.kv_cache: ", config::FormatBytes(plan_.kv_bytes), " holds no block of model \"",
          g.name, "\", which takes ", config::FormatBytes(block_bytes)));
    }
    if (tokens < g.max_context) {
      BATON_LOG_WARN(
          "memory.kv_cache holds {} tokens of \"{}\", less than its context of {}: longer requests "
          "are refused",
          tokens, g.name, g.max_context);
    }
    plan_.lines.push_back(fmt::format(
        "{}: weights {:.1f} MiB as {}, KV cache for {} tokens as {} ({:.1f} KiB a token)", g.name,
        static_cast<double>(g.model->weight_bytes()) / (1 << 20),
        DTypeName(g.model->weight_dtype()), tokens, DTypeName(g.kv_dtype),
        static_cast<double>(block_bytes) / kBlockTokens / 1024));
    return absl::OkStatus();
  }

  absl::Status StartEngines(MetricRegistry& metrics) {
    for (const auto& g : groups_) {
      EngineResources resources;
      resources.model = g->model;
      resources.adapters = g->adapters;
      resources.tokenizer = g->tokenizer;
      resources.eos_token_ids.assign(g->eos.begin(), g->eos.end());
      resources.pool = pools_.at({g->PageLayout().head_dim, static_cast<int>(g->kv_dtype)});
      resources.gate = &gate_;
      resources.executor = executor_.get();
      resources.metrics = &metrics;
      EngineOptions options;
      options.name = g->name;
      options.max_context = g->max_context;
      options.step_tokens = options_.engine.step_tokens;
      options.max_running = options_.engine.max_running;
      options.max_waiting = options_.engine.max_waiting;
      options.prefix_cache = options_.engine.prefix_cache;
      BATON_ASSIGN_OR_RETURN(g->engine, Engine::Create(std::move(resources), options));
      for (size_t i : g->entries) {
        models_[i].engine = g->engine.get();
        models_[i].eos_token_ids.assign(g->eos.begin(), g->eos.end());
      }
      g->source.reset();  // packed: the file need not stay mapped
    }
    return absl::OkStatus();
  }

  std::map<Key, Group*> by_key_;
};

std::string HostedModel::NativeDigest(const Fidelity& fidelity) const {
  Space space = native_space;
  space.fidelity = fidelity;
  return space.Digest();
}

absl::StatusOr<std::unique_ptr<ModelHost>> ModelHost::Load(const ModelHostOptions& options,
                                                           MetricRegistry& metrics) {
  auto impl = std::make_unique<Impl>(options);
  BATON_RETURN_IF_ERROR(impl->Load(metrics));
  return std::unique_ptr<ModelHost>(new ModelHost(std::move(impl)));
}

ModelHost::ModelHost(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ModelHost::~ModelHost() = default;

const HostedModel* ModelHost::Find(std::string_view name) const { return impl_->Find(name); }
const std::vector<HostedModel>& ModelHost::models() const { return impl_->models_; }
const MemoryPlan& ModelHost::plan() const { return impl_->plan_; }

std::string ModelHost::ModelNames() const {
  return absl::StrJoin(impl_->models_, ", ", [](std::string* out, const HostedModel& m) {
    absl::StrAppend(out, "\"", m.name, "\"");
  });
}

ModelHost::Totals ModelHost::GetTotals() const {
  Totals t;
  for (const auto& g : impl_->groups_) {
    const EngineStats s = g->engine->GetStats();
    t.running += s.running;
    t.waiting += s.waiting;
    t.cached_blocks += s.cached_blocks;
  }
  for (const auto& [key, pool] : impl_->pools_) {
    const PagePool::Stats s = pool->GetStats();
    t.pages_held += s.held;
    t.pages_reserved += s.reserved;
    t.pages_total += s.total;
  }
  return t;
}

void ModelHost::ClearPrefixCaches() {
  for (const auto& g : impl_->groups_) g->engine->ClearPrefixCache();
}

bool ModelHost::Drain(std::chrono::nanoseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  bool all = true;
  for (const auto& g : impl_->groups_) {
    const auto left = end - std::chrono::steady_clock::now();
    all = g->engine->Drain(std::max(left, std::chrono::steady_clock::duration::zero())) && all;
  }
  return all;
}

}  // namespace baton
