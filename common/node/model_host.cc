#include "common/node/model_host.h"

#include <algorithm>
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
#include "common/model/kv_projection.h"
#include "common/model/weight_store.h"
#include "common/node/load_progress.h"
#include "common/node/space_proto.h"

namespace baton {
namespace {

absl::Status InEntry(size_t i, const ModelEntry& entry, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("models[", i, "] (", entry.name, "): ", status.message()));
}

struct Group {  // one set of weights, one engine
  std::shared_ptr<const Model> model;
  std::shared_ptr<AdapterSet> adapters;
  std::map<std::string, int> adapter_index;  // by digest
  std::shared_ptr<const Tokenizer> tokenizer;
  DType kv_dtype = DType::kF32;
  std::set<std::int32_t> eos;  // of the files; an entry's template may add one of its own
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

}  // namespace

class ModelHost::Impl {
 public:
  explicit Impl(const ModelHostOptions& options)
      : options_(options), executor_(MakeThreadPool(options.engine_threads)) {}

  ~Impl() {
    groups_.clear();  // engines stop before pools, executor and gate go
  }

  absl::Status Load(ModelFiles files, MetricRegistry& metrics) {
    const auto loaders = MakeThreadPool(options_.load_threads);
    models_.resize(options_.models.size());
    for (size_t i = 0; i < options_.models.size(); ++i) {
      if (absl::Status s = LoadEntry(i, files, *loaders, metrics); !s.ok()) {
        return InEntry(i, options_.models[i], s);
      }
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
  WeightStore store_;
  std::map<std::pair<int, int>, std::shared_ptr<PagePool>> pools_;  // by (head_dim, dtype)
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<HostedModel> models_;
  MemoryPlan plan_;

 private:
  using Key = std::tuple<size_t, WeightDType, DType>;  // files, dtypes of weights and of K/V

  absl::StatusOr<Group*> GroupFor(const ModelEntry& entry, const ModelFiles& files, size_t weights,
                                  Executor& loaders, MetricRegistry& metrics) {
    const Key key(weights, entry.weight_dtype, entry.kv_dtype);
    if (auto it = by_key_.find(key); it != by_key_.end()) return it->second;
    auto group = std::make_unique<Group>();
    group->tokenizer = files.weights[weights].tokenizer;
    group->kv_dtype = entry.kv_dtype;
    group->name = entry.name;
    BATON_ASSIGN_OR_RETURN(group->model, LoadModel(entry, *files.weights[weights].source, loaders));
    group->adapters = std::make_shared<AdapterSet>(group->model);
    for (std::int32_t id : group->model->config().eos_ids) group->eos.insert(id);
    if (auto id = group->tokenizer->eos_id()) group->eos.insert(*id);
    const auto own = static_cast<std::int64_t>(group->model->own_weight_bytes());
    plan_.weight_bytes += own;
    metrics
        .AddGaugeFamily("baton_weight_bytes",
                        "Memory of a model's weights; what models share counts for the first.",
                        {"model"})
        .With({group->name})
        .Set(static_cast<double>(own));
    groups_.push_back(std::move(group));
    return by_key_[key] = groups_.back().get();
  }

  absl::StatusOr<std::shared_ptr<const Model>> LoadModel(const ModelEntry& entry,
                                                         const ModelSource& source,
                                                         Executor& loaders) {
    LoadProgress progress(entry.name);
    ModelLoadOptions load;
    load.weight_dtype = entry.weight_dtype;
    load.executor = &loaders;
    load.store = &store_;
    load.progress = [&](std::int64_t done, std::int64_t total) { progress.Update(done, total); };
    BATON_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, Model::Load(source, load));
    progress.Finish(SharedText(*model));
    return model;
  }

  static std::string SharedText(const Model& model) {
    const std::size_t shared = model.weight_bytes() - model.own_weight_bytes();
    return shared == 0 ? ""
                       : fmt::format("{:.1f} MiB of it shared with other models",
                                     static_cast<double>(shared) / (1 << 20));
  }

  absl::Status LoadEntry(size_t i, ModelFiles& files, Executor& loaders, MetricRegistry& metrics) {
    const ModelEntry& entry = options_.models[i];
    ModelFiles::Entry& opened = files.entries[i];
    BATON_ASSIGN_OR_RETURN(Group * group, GroupFor(entry, files, opened.weights, loaders, metrics));
    HostedModel& m = models_[i];
    m.name = entry.name;
    m.base_model = entry.base_model.empty() ? entry.name : entry.base_model;
    m.tokenizer = group->tokenizer;
    m.vocab = static_cast<std::int32_t>(group->model->config().vocab);
    m.page_layout = group->PageLayout();
    m.weights_digest = group->model->served_digest();
    if (opened.adapter != nullptr) {
      BATON_RETURN_IF_ERROR(AddAdapter(*opened.adapter, *group, loaders, m));
      opened.adapter.reset();  // packed
    }
    if (!opened.chat_template.empty()) {
      m.chat_template = opened.chat_template;
      m.chat_template_digest = ContentDigest(opened.chat_template);
    }
    std::set<std::int32_t> eos = group->eos;
    if (auto id = m.tokenizer->TokenToId(opened.end_of_turn); !opened.end_of_turn.empty() && id) {
      eos.insert(*id);
    }
    m.eos_token_ids.assign(eos.begin(), eos.end());
    m.max_context = opened.max_context;
    m.selective = opened.selective;
    group->max_context = std::max(group->max_context, m.max_context);
    const KvLayout layout = MakeKvLayout(group->model->config(), entry.kv_dtype);
    m.native_space = {SpaceKind::kNativeKv, m.weights_digest, m.tokenizer->digest(), layout, "",
                      Fidelity::Exact()};
    m.base_space = {
        SpaceKind::kBaseKv, group->model->served_digest(), m.tokenizer->digest(), layout, "",
        Fidelity::Exact()};
    group->entries.push_back(i);
    const std::string adapter = m.adapter < 0 ? "" : group->adapters->digest(m.adapter);
    for (std::size_t c = 0; c < opened.codecs.size(); ++c) {
      if (absl::Status s = AddCodec(*opened.codecs[c], *group, adapter, loaders, m); !s.ok()) {
        return absl::Status(s.code(), absl::StrCat("codecs: ", entry.codecs[c], ": ", s.message()));
      }
    }
    opened.codecs.clear();  // packed
    return absl::OkStatus();
  }

  static absl::Status AddCodec(const Codec& codec, const Group& group, const std::string& adapter,
                               Executor& loaders, HostedModel& m) {
    const CodecIdentity& id = codec.identity;
    const Model& model = *group.model;
    if (id.tokenizer != m.tokenizer->digest()) {
      return absl::FailedPreconditionError(
          absl::StrCat("tokenizer: ", id.tokenizer, ", the model's is ", m.tokenizer->digest()));
    }
    const std::string weights = ConsumerWeightsDigest(model.content_digest(), adapter);
    if (id.producer_weights != weights && id.consumer_weights != weights) {
      return absl::FailedPreconditionError(absl::StrCat(
          "producer_weights: ", id.producer_weights, " and consumer_weights: ", id.consumer_weights,
          "; this model's are ", weights));
    }
    const auto is_this = [digest = codec.EncoderDigest()](const auto& encoder) {
      return encoder->digest() == digest;
    };
    if (id.producer_weights == weights &&
        std::none_of(m.encoders.begin(), m.encoders.end(), is_this)) {
      m.encoders.push_back(std::make_shared<const CodeEncoder>(codec, loaders));
    }
    if (id.consumer_weights == weights) {
      DecoderRope rope{RopeInverseFrequencies(model.config()),
                       static_cast<float>(model.config().rope.attention_factor)};
      ConsumerProjection projection;
      if (codec.patched()) {
        projection = [own = std::make_shared<const KvProjection>(group.model, group.adapters,
                                                                 m.adapter, loaders)](
                         int layer, const float* inputs, std::int64_t rows, float* kv,
                         Executor& executor) { own->Project(layer, inputs, rows, kv, executor); };
      }
      m.decoders.push_back(std::make_shared<const CodeDecoder>(codec, std::move(rope), loaders,
                                                               std::move(projection)));
    }
    return absl::OkStatus();
  }

  absl::Status AddAdapter(const LoraAdapter& lora, Group& group, Executor& loaders,
                          HostedModel& m) {
    auto it = group.adapter_index.find(lora.digest);
    if (it == group.adapter_index.end()) {
      BATON_ASSIGN_OR_RETURN(const int index, group.adapters->Add(lora, loaders));
      it = group.adapter_index.emplace(lora.digest, index).first;
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
    const std::string shared = SharedText(*g.model);
    plan_.lines.push_back(fmt::format(
        "{}: weights {:.1f} MiB as {}{}{}, KV cache for {} tokens as {} ({:.1f} KiB a token)",
        g.name, static_cast<double>(g.model->weight_bytes()) / (1 << 20),
        WeightDTypeName(g.model->weight_dtype()), shared.empty() ? "" : ", ", shared, tokens,
        DTypeName(g.kv_dtype), static_cast<double>(block_bytes) / kBlockTokens / 1024));
    return absl::OkStatus();
  }

  absl::Status StartEngines(MetricRegistry& metrics) {
    for (const auto& g : groups_) {
      EngineResources resources;
      resources.model = g->model;
      resources.adapters = g->adapters;
      resources.tokenizer = g->tokenizer;
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
      for (size_t i : g->entries) models_[i].engine = g->engine.get();
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
                                                           ModelFiles files,
                                                           MetricRegistry& metrics) {
  auto impl = std::make_unique<Impl>(options);
  BATON_RETURN_IF_ERROR(impl->Load(std::move(files), metrics));
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
